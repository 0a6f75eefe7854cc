from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from detscope.config.schema import DataSettings, TrainingSettings
from detscope.data.dataset import FolderDataset
from detscope.data.loading import build_loader, check_shared_memory, sample_item_bytes
from detscope.data.registry import open_dataset
from detscope.errors import InputError, MachineError

FREE_BYTES = 2**30


class Threads:
    """A data set that tells what its worker looks like."""

    name = "threads"
    classes = ("background", "thing")

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, Any]]:
        drawn = torch.rand(1)
        return torch.zeros(3, 8, 8), {
            "image_id": index,
            "threads": torch.get_num_threads(),
            "drawn": float(drawn),
            "process": os.getpid(),
        }

    def image_name(self, index: int) -> str:
        return str(index)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FolderDataset:
    root = tmp_path_factory.mktemp("data")
    settings = DataSettings(root=str(root), images=7, image_width=96, image_height=64)
    opened = open_dataset(settings, need_masks=True)
    assert isinstance(opened, FolderDataset)
    return opened


@pytest.fixture
def small_shm(tmp_path: Path) -> Iterator[Path]:
    """A real tmpfs of 16 MB, where this process may mount one."""
    folder = tmp_path / "shm"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, timeout=900).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=900)


@pytest.fixture
def steady_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a GiB free, whatever others write meanwhile."""
    monkeypatch.setattr(
        os, "statvfs", lambda _path: SimpleNamespace(f_bavail=FREE_BYTES // 4096, f_frsize=4096)
    )
    return tmp_path


def training(**values: Any) -> TrainingSettings:
    return TrainingSettings(**{"batch_size": 2, "num_workers": 0, **values})


def ids(loader: Any) -> list[list[int]]:
    return [[target["image_id"] for target in targets] for _, targets in loader]


def test_batches_are_lists_of_images_and_targets(dataset: FolderDataset) -> None:
    images, targets = next(iter(build_loader(dataset, training(), "cpu", seed=0).loader))
    assert isinstance(images, list) and isinstance(targets, list)
    assert [image.shape for image in images] == [(3, 64, 96)] * 2
    assert targets[0]["masks"].shape[1:] == (64, 96)


def test_workers_give_the_same_batches_as_the_loop_itself(dataset: FolderDataset) -> None:
    alone = build_loader(dataset, training(), "cpu", seed=5).loader
    helped = build_loader(dataset, training(num_workers=2), "cpu", seed=5).loader
    assert helped.prefetch_factor == 2 and helped.persistent_workers
    for (images, targets), (other_images, other_targets) in zip(alone, helped, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(images, other_images, strict=True))
        assert targets[0]["image_id"] == other_targets[0]["image_id"]


def test_the_seed_decides_the_order_and_epochs_differ(dataset: FolderDataset) -> None:
    one, same, other = (build_loader(dataset, training(), "cpu", seed=seed).loader for seed in (1, 1, 2))
    first, second = ids(one), ids(one)
    assert first == ids(same) and second == ids(same)
    assert first != second and first != ids(other)
    assert ids(build_loader(dataset, training(), "cpu", shuffle=False, seed=1).loader)[0] == [1, 2]


def test_a_prefetch_factor_without_workers_is_noted_and_not_a_crash(dataset: FolderDataset) -> None:
    plan = build_loader(dataset, training(prefetch_factor=4), "cpu", seed=0)
    assert len(ids(plan.loader)) == 3
    assert plan.notes == ("prefetch_factor = 4 has no effect with num_workers = 0",)
    assert plan.shared_memory is None


def test_the_last_small_batch_is_left_out_unless_it_is_wanted(dataset: FolderDataset) -> None:
    assert [len(batch) for batch in ids(build_loader(dataset, training(), "cpu", seed=0).loader)] == [2, 2, 2]
    whole = build_loader(dataset, training(), "cpu", seed=0, every_image=True)
    assert sum(len(batch) for batch in ids(whole.loader)) == 7


def test_a_data_set_smaller_than_a_batch_is_one_batch_and_noted(dataset: FolderDataset) -> None:
    plan = build_loader(dataset, training(batch_size=16), "cpu", seed=0)
    assert [len(batch) for batch in ids(plan.loader)] == [7]
    assert plan.notes == ("the data set has 7 images: batches of 7 instead of 16",)


def test_memory_is_pinned_for_cuda_only(dataset: FolderDataset) -> None:
    assert build_loader(dataset, training(), "cuda:0", seed=0).loader.pin_memory
    assert not build_loader(dataset, training(pin_memory=False), "cuda:0", seed=0).loader.pin_memory
    plan = build_loader(dataset, training(pin_memory=True), "cpu", seed=0)
    assert not plan.loader.pin_memory
    assert plan.notes == ("pin_memory = true has no effect on device cpu",)


def test_more_workers_than_cores_are_noted(dataset: FolderDataset, steady_disk: Path) -> None:
    plan = build_loader(dataset, training(num_workers=500), "cpu", seed=0, shm_path=steady_disk)
    assert any(note.startswith("500 loader workers share") for note in plan.notes)


def test_workers_use_one_thread_each_and_are_seeded() -> None:
    def run() -> list[tuple[int, float]]:
        loader = build_loader(Threads(), training(num_workers=2), "cpu", seed=3).loader
        seen = [target for _, targets in loader for target in targets]
        assert len({target["process"] for target in seen}) == 2
        return [(target["threads"], target["drawn"]) for target in seen]

    first = run()
    assert {threads for threads, _ in first} == {1}
    assert len({drawn for _, drawn in first}) == 8
    assert run() == first


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_breaks_during_the_run_is_one_line(tmp_path: Path, workers: int) -> None:
    settings = DataSettings(root=str(tmp_path), images=2, image_width=64, image_height=64)
    opened = open_dataset(settings)
    assert isinstance(opened, FolderDataset)
    loader = build_loader(opened, training(num_workers=workers), "cpu", seed=0).loader
    victim = opened.images_folder / opened.image_name(1)
    victim.write_bytes(victim.read_bytes()[:700])
    with pytest.raises(InputError) as caught:
        next(iter(loader))
    assert caught.value.message.startswith(f"{victim}: cannot be decoded")
    assert "\n" not in caught.value.message and "skip" in caught.value.hint


def test_shared_memory_counts_every_waiting_batch(dataset: FolderDataset) -> None:
    image_bytes = sample_item_bytes(dataset)
    assert image_bytes >= 3 * 64 * 96 * 4
    need = check_shared_memory(image_bytes, training(num_workers=3, prefetch_factor=4))
    assert need.batches == 3 * 4 + 2
    assert need.need_bytes == need.batches * need.batch_bytes


def test_a_batch_is_at_most_two_files_of_shared_memory_in_whole_pages() -> None:
    for image_bytes, pages in ((100, 2), (4096, 9), (4100, 10)):
        need = check_shared_memory(image_bytes, training(num_workers=1, batch_size=8))
        assert need.batch_bytes == pages * 4096


def test_sixteen_megabytes_of_shared_memory_are_refused_before_the_run(
    small_shm: Path, dataset: FolderDataset
) -> None:
    image_bytes = 3 * 800 * 1066 * 4
    with pytest.raises(MachineError) as caught:
        check_shared_memory(image_bytes, training(num_workers=2), shm_path=small_shm)
    assert "need 117.1 MiB of shared memory" in caught.value.message
    assert f"{small_shm} has 16.0 MiB" in caught.value.message
    assert "num_workers = 0" in caught.value.hint and "--shm-size=1g" in caught.value.hint
    build_loader(dataset, training(num_workers=2), "cpu", seed=0, shm_path=small_shm)


def test_the_loader_itself_refuses_when_shared_memory_is_full(
    small_shm: Path, dataset: FolderDataset
) -> None:
    (small_shm / "others").write_bytes(bytes(16 * 2**20 - 300_000))
    with pytest.raises(MachineError, match="of shared memory"):
        build_loader(dataset, training(num_workers=2), "cpu", seed=0, shm_path=small_shm)
    build_loader(dataset, training(num_workers=0), "cpu", seed=0, shm_path=small_shm)


def test_a_need_beyond_the_machine_is_refused_with_what_would_fit(steady_disk: Path) -> None:
    with pytest.raises(MachineError, match="of shared memory") as caught:
        check_shared_memory(FREE_BYTES // 5, training(num_workers=4, batch_size=1), shm_path=steady_disk)
    assert "num_workers = 2 with prefetch_factor = 1 fits" in caught.value.hint


def test_tight_shared_memory_is_noted(steady_disk: Path) -> None:
    notes: list[str] = []
    check_shared_memory(
        FREE_BYTES // 5, training(num_workers=1, batch_size=1), shm_path=steady_disk, notes=notes
    )
    assert notes == [f"shared memory is tight: 819.2 MiB needed, 1024.0 MiB free in {steady_disk}"]


def test_without_the_folder_it_cannot_tell(tmp_path: Path) -> None:
    notes: list[str] = []
    need = check_shared_memory(10**15, training(num_workers=2), shm_path=tmp_path / "none", notes=notes)
    assert need.free_bytes is None
    assert notes[0].startswith("shared memory: cannot tell")
