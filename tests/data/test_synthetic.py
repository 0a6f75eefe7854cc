from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from detscope.config.schema import DataSettings
from detscope.data.dataset import FolderDataset
from detscope.data.formats.synthetic import CLASSES, MAX_OVERLAP, SyntheticParameters, generate_images
from detscope.data.registry import list_datasets, open_dataset
from detscope.errors import MachineError, UsageError

SMALL = SyntheticParameters(images=5, width=96, height=64, max_objects=4, seed=3, split="train")


def content_of(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def annotations_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "annotations" / "instances.json").read_text())
    return content


def open_synthetic(root: Path, **options: Any) -> FolderDataset:
    settings = DataSettings(root=str(root), images=options.pop("images", 6), image_width=128, image_height=96)
    dataset = open_dataset(settings, **options)
    assert isinstance(dataset, FolderDataset)
    return dataset


def test_the_same_seed_draws_the_same_files(tmp_path: Path) -> None:
    one, other = generate_images(tmp_path / "1", SMALL), generate_images(tmp_path / "2", SMALL)
    assert content_of(one) == content_of(other)
    assert set(content_of(one)) == {
        "annotations/instances.json",
        *(f"images/{number:06d}.jpg" for number in range(1, 6)),
    }


def test_another_seed_or_split_draws_other_pictures(tmp_path: Path) -> None:
    variants = [
        SMALL,
        SyntheticParameters(5, 96, 64, 4, 4, "train"),
        SyntheticParameters(5, 96, 64, 4, 3, "val"),
    ]
    firsts = {content_of(generate_images(tmp_path, variant))["images/000001.jpg"] for variant in variants}
    assert len(firsts) == 3


def test_more_images_begin_with_the_same_ones(tmp_path: Path) -> None:
    few = content_of(generate_images(tmp_path, SyntheticParameters(2, 96, 64, 4, 3, "train")))
    more = content_of(generate_images(tmp_path, SMALL))
    assert few["images/000002.jpg"] == more["images/000002.jpg"]


def test_targets_are_what_every_family_needs(tmp_path: Path) -> None:
    dataset = open_synthetic(tmp_path, need_masks=True, need_keypoints=True)
    assert dataset.classes == ("background", *(shape.name for shape in CLASSES))
    for index in range(len(dataset)):
        image, target = dataset[index]
        boxes, masks, points = target["boxes"], target["masks"], target["keypoints"]
        count = len(boxes)
        assert image.shape == (3, 96, 128) and image.is_contiguous() and count >= 1
        assert (boxes[:, 2:] > boxes[:, :2]).all() and (boxes >= 0).all()
        assert (boxes[:, 2] <= 128).all() and (boxes[:, 3] <= 96).all()
        assert target["labels"].min() >= 1 and target["labels"].max() <= len(CLASSES)
        assert masks.shape == (count, 96, 128) and points.shape == (count, 17, 3)
        assert (points[:, :, 2] == 2).all()
        for box, mask, marked in zip(boxes, masks, points, strict=True):
            rows, columns = torch.nonzero(mask, as_tuple=True)
            around = torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            assert (around - box).abs().max() <= 1.5
            assert (marked[:, :2] >= box[:2] - 0.02).all() and (marked[:, :2] <= box[2:] + 0.02).all()


def test_objects_show_their_class_colour_where_their_mask_is(tmp_path: Path) -> None:
    dataset = open_synthetic(tmp_path, need_masks=True, images=12)
    for index in range(len(dataset)):
        image, target = dataset[index]
        for label, mask in zip(target["labels"], target["masks"], strict=True):
            inside = image[:, mask.bool()].median(dim=1).values * 255
            distance = [float((inside - torch.tensor(shape.colour)).abs().sum()) for shape in CLASSES]
            assert int(np.argmin(distance)) == int(label) - 1


def test_objects_do_not_hide_each_other_also_in_a_full_picture(tmp_path: Path) -> None:
    folder = generate_images(tmp_path, SyntheticParameters(6, 96, 64, 40, 0, "train"))
    content = annotations_of(folder)
    for image in content["images"]:
        boxes = [row["bbox"] for row in content["annotations"] if row["image_id"] == image["id"]]
        for number, (x, y, width, height) in enumerate(boxes):
            for other_x, other_y, other_width, other_height in boxes[number + 1 :]:
                across = min(x + width, other_x + other_width) - max(x, other_x)
                down = min(y + height, other_y + other_height) - max(y, other_y)
                shared = max(across, 0) * max(down, 0)
                assert shared <= (MAX_OVERLAP + 0.01) * min(width * height, other_width * other_height)


def test_counts_classes_and_sizes_vary(tmp_path: Path) -> None:
    dataset = open_synthetic(tmp_path, images=24)
    counts = {len(record.labels) for record in dataset.records}
    labels = {int(label) for record in dataset.records for label in record.labels}
    heights = np.concatenate([record.boxes[:, 3] - record.boxes[:, 1] for record in dataset.records])
    assert len(counts) >= 4 and len(labels) == len(CLASSES)
    assert heights.max() > 2 * heights.min()


def test_default_is_sixteen_images(tmp_path: Path) -> None:
    assert len(open_dataset(DataSettings(root=str(tmp_path), image_width=32, image_height=32))) == 16


def test_a_complete_folder_is_reused_and_an_incomplete_one_made_again(tmp_path: Path) -> None:
    seen: list[int] = []
    folder = generate_images(tmp_path, SMALL, lambda _what, done, _total: seen.append(done))
    before = content_of(folder)
    assert seen == [1, 2, 3, 4, 5]
    generate_images(tmp_path, SMALL, lambda _what, done, _total: seen.append(done))
    assert len(seen) == 5
    (folder / "images" / "000003.jpg").unlink()
    assert content_of(generate_images(tmp_path, SMALL)) == before


def test_an_interrupted_drawing_leaves_no_folder_behind(tmp_path: Path) -> None:
    def interrupt(_what: str, done: int, _total: int | None) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_images(tmp_path, SMALL, interrupt)
    assert [path for path in (tmp_path / "synthetic").iterdir() if path.is_dir()] == []


def test_what_a_killed_process_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    partial = tmp_path / "synthetic" / f".{SMALL.folder_name()}.partial"
    (partial / "images").mkdir(parents=True)
    (partial / "images" / "stale.jpg").write_bytes(b"x")
    folder = generate_images(tmp_path, SMALL)
    assert not partial.exists() and not (folder / "images" / "stale.jpg").exists()


def test_processes_that_draw_at_the_same_moment_do_not_clash(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path;"
        "from detscope.data.formats.synthetic import SyntheticParameters, generate_images;"
        "print(generate_images(Path(sys.argv[1]), SyntheticParameters(40, 160, 120, 4, 0, 'train')))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    outcomes = [process.communicate(timeout=900) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], outcomes
    folders = {stdout for stdout, _ in outcomes}
    assert len(folders) == 1
    assert len(list((tmp_path / "synthetic").glob("*/images/*.jpg"))) == 40
    assert [path for path in (tmp_path / "synthetic").iterdir() if path.name.endswith(".partial")] == []


def test_a_root_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(MachineError, match="cannot write"):
        generate_images(tmp_path / "file", SMALL)


def test_an_unknown_data_set_gets_a_suggestion_and_the_list() -> None:
    with pytest.raises(UsageError) as caught:
        open_dataset(DataSettings(name="synthetik"))
    assert "'synthetik'" in caught.value.message
    assert "did you mean 'synthetic'" in caught.value.hint and "pets" in caught.value.hint


def test_every_registered_data_set_has_an_opener_and_a_description() -> None:
    for entry in list_datasets():
        assert entry.description
        assert callable(entry.open_named)
    ours = [entry.name for entry in list_datasets() if entry.open_named.__module__.startswith("detscope.")]
    assert ours == ["synthetic", "pets", "voc", "coco"], "beside them, what other tests have added"


def test_listing_data_sets_needs_no_torch() -> None:
    program = (
        "import sys; from detscope.data.registry import list_datasets; list_datasets();"
        "assert not {'torch', 'PIL'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=900)


@pytest.mark.parametrize(
    "settings",
    [{"images": 2**32 - 1}, {"image_width": 10**6, "image_height": 10**6}],
)
def test_more_than_anybody_draws_is_refused_at_once(tmp_path: Path, settings: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="the limit is"):
        open_dataset(DataSettings(root=str(tmp_path), **settings), split="train", seed=0)
    assert not list(tmp_path.iterdir())
