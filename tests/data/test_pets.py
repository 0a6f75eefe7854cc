from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_file_server import FileServer, serving
from PIL import Image

from detscope.config.schema import DataSettings
from detscope.data.contract import OpenRequest
from detscope.data.dataset import FolderDataset
from detscope.data.download.prepare import RemoteFile
from detscope.data.formats.pets import MIRROR_VARIABLE, PetsSource, box_around, find_source, open_pets
from detscope.errors import InputError, UsageError

NAMES = {"Abyssinian_1": 1, "american_bulldog_2": 2, "Abyssinian_3": 1}


def trimap(x1: int, y1: int, x2: int, y2: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Background, a border two pixels wide, and foreground from (x1, y1) to before (x2, y2)."""
    labels = np.full((40, 60), 2, dtype=np.uint8)
    labels[max(0, y1 - 2) : y2 + 2, max(0, x1 - 2) : x2 + 2] = 3
    labels[y1:y2, x1:x2] = 1
    return labels


TRIMAPS = {
    "Abyssinian_1": trimap(10, 5, 30, 25),
    "american_bulldog_2": trimap(40, 20, 41, 21),  # a single pixel is one pixel wide, not zero
    "Abyssinian_3": np.full((40, 60), 2, dtype=np.uint8),
}


def encoded(pixels: np.ndarray[Any, np.dtype[np.uint8]], file_format: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, file_format)
    return buffer.getvalue()


def pet_files() -> tuple[dict[str, bytes], dict[str, bytes]]:
    images = {f"images/{name}.jpg": encoded(np.full((40, 60, 3), 90, np.uint8), "JPEG") for name in NAMES}
    split = "".join(f"{name} {breed} 1 1\n" for name, breed in NAMES.items())
    annotations = {f"annotations/trimaps/{name}.png": encoded(TRIMAPS[name], "PNG") for name in NAMES}
    annotations["annotations/trimaps/._Abyssinian_1.png"] = b"left by a Mac"
    annotations["annotations/trainval.txt"] = split.encode()
    annotations["annotations/test.txt"] = split.splitlines()[0].encode()
    return images, annotations


def tar_gz(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as running:
        images, annotations = pet_files()
        running.files = {"/images.tar.gz": tar_gz(images), "/annotations.tar.gz": tar_gz(annotations)}
        yield running


def source(server: FileServer) -> PetsSource:
    def remote(name: str) -> RemoteFile:
        content = server.files[f"/{name}"]
        checksum = f"md5:{hashlib.md5(content).hexdigest()}"
        return RemoteFile(f"{server.url}/{name}", name, checksum, len(content))

    return PetsSource(remote("images.tar.gz"), remote("annotations.tar.gz"))


def open_small(root: Path, server: FileServer, split: str = "train", **settings: Any) -> FolderDataset:
    masks = settings.pop("need_masks", False)
    request = OpenRequest(
        DataSettings(name="pets", root=str(root), **settings),
        need_masks=masks,
        split=split,  # type: ignore[arg-type]
    )
    return open_pets(request, source(server))


def test_pets_are_fetched_unpacked_and_opened(server: FileServer, tmp_path: Path) -> None:
    server.break_after_bytes = [100]
    dataset = open_small(tmp_path, server)
    assert dataset.classes == ("background", "Abyssinian", "American Bulldog")
    assert [dataset[index][1]["labels"].tolist() for index in range(3)] == [[1], [2], []]
    assert any("Range" in request for request in server.requests)
    left = sorted(path.name for path in tmp_path.rglob("*.tar.gz*") if not path.name.endswith(".lock"))
    assert left == []


def test_boxes_and_masks_are_the_foreground_without_the_border(server: FileServer, tmp_path: Path) -> None:
    dataset = open_small(tmp_path, server, need_masks=True)
    image, target = dataset[0]
    assert image.shape == (3, 40, 60)
    assert target["boxes"].tolist() == [[10, 5, 30, 25]]
    assert target["area"].tolist() == [400]
    assert (target["masks"][0].numpy() == (TRIMAPS["Abyssinian_1"] == 1)).all()


def test_no_box_has_size_zero_and_no_foreground_means_no_box(server: FileServer, tmp_path: Path) -> None:
    dataset = open_small(tmp_path, server, need_masks=True)
    assert dataset[1][1]["boxes"].tolist() == [[40, 20, 41, 21]]
    assert dataset[2][1]["boxes"].shape == (0, 4) and dataset[2][1]["masks"].shape == (0, 40, 60)
    assert [str(problem) for problem in dataset.problems] == [
        "Abyssinian_3.jpg: trimap without foreground (noted)"
    ]


def test_one_class_a_limit_and_the_other_split(server: FileServer, tmp_path: Path) -> None:
    dataset = open_small(tmp_path, server, pet_classes="one", images=2)
    assert dataset.classes == ("background", "pet") and len(dataset) == 2
    assert dataset[1][1]["labels"].tolist() == [1]
    assert len(open_small(tmp_path, server, split="val")) == 1


def test_the_second_time_nothing_is_fetched(server: FileServer, tmp_path: Path) -> None:
    open_small(tmp_path, server)
    count = len(server.requests)
    open_small(tmp_path, server)
    assert len(server.requests) == count


def test_a_wrong_archive_is_named_and_nothing_is_left(server: FileServer, tmp_path: Path) -> None:
    expected = source(server)
    server.files["/images.tar.gz"] = b"<html>gone</html>"
    request = OpenRequest(DataSettings(name="pets", root=str(tmp_path)))
    with pytest.raises(InputError, match=r"images\.tar\.gz .*HTML page: md5 expected .* actual"):
        open_pets(request, expected)
    assert not (tmp_path / "oxford-iiit-pet").exists()
    assert not list(tmp_path.rglob("images.tar.gz")) and not list(tmp_path.rglob("*.partial"))


def test_a_hostile_archive_writes_nothing(server: FileServer, tmp_path: Path) -> None:
    server.files["/images.tar.gz"] = tar_gz({"../../evil.jpg": b"x"})
    with pytest.raises(InputError, match="outside the target folder"):
        open_small(tmp_path / "deep" / "root", server)
    assert not list(tmp_path.rglob("evil.jpg")) and not list(tmp_path.rglob("oxford-iiit-pet/images"))


def test_a_folder_of_ones_own_that_lacks_parts_is_not_touched(server: FileServer, tmp_path: Path) -> None:
    mine = tmp_path / "oxford-iiit-pet" / "images"
    mine.mkdir(parents=True)
    (mine / "mine.jpg").write_bytes(b"x")
    with pytest.raises(InputError, match="not complete"):
        open_small(tmp_path, server)
    assert (mine / "mine.jpg").exists() and server.requests == []


def test_bad_images_and_trimaps_follow_the_policy(server: FileServer, tmp_path: Path) -> None:
    open_small(tmp_path, server)
    folder = tmp_path / "oxford-iiit-pet"
    (folder / "images" / "Abyssinian_1.jpg").write_bytes(b"")
    (folder / "annotations" / "trimaps" / "american_bulldog_2.png").unlink()
    with pytest.raises(InputError, match="no such file"):
        open_small(tmp_path, server)
    dataset = open_small(tmp_path, server, on_bad_data="skip")
    assert [dataset.image_name(index) for index in range(len(dataset))] == ["Abyssinian_3.jpg"]
    assert [problem.action for problem in dataset.problems].count("dropped") == 2


def test_a_damaged_split_list_is_one_line(server: FileServer, tmp_path: Path) -> None:
    open_small(tmp_path, server)
    (tmp_path / "oxford-iiit-pet" / "annotations" / "trainval.txt").write_text("Abyssinian_1 one\n")
    with pytest.raises(InputError, match=r"trainval\.txt: not a list"):
        open_small(tmp_path, server)


def test_keypoints_are_refused_before_anything_is_fetched(server: FileServer, tmp_path: Path) -> None:
    request = OpenRequest(DataSettings(name="pets", root=str(tmp_path)), need_keypoints=True)
    with pytest.raises(UsageError, match="has no keypoints"):
        open_pets(request, source(server))
    assert server.requests == []


def test_a_mirror_serves_the_same_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MIRROR_VARIABLE, "http://mirror.test/pets/")
    mirrored = find_source()
    assert mirrored.images.url == "http://mirror.test/pets/images.tar.gz"
    monkeypatch.delenv(MIRROR_VARIABLE)
    assert find_source().images.url.startswith("https://")
    assert find_source().images.checksum == mirrored.images.checksum


def test_the_box_around_nothing_is_empty() -> None:
    assert box_around(np.zeros((3, 3), dtype=bool)) == (0, 0, 0, 0)
