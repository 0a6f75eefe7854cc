"""Images named on a command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from detscope.data.images import find_images, read_images


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """b.jpg, a.png, sub/c.JPEG and some things that are no images."""
    (tmp_path / "in" / "sub").mkdir(parents=True)
    for number, name in enumerate(("b.jpg", "a.png", "sub/c.JPEG")):
        Image.new("RGB", (10 + number, 20)).save(tmp_path / "in" / name)
    (tmp_path / "in" / "readme.txt").write_text("x")
    (tmp_path / "in" / "x.jpg").mkdir()
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    (tmp_path / "bare").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["in"], ["in/a.png", "in/b.jpg", "in/sub/c.JPEG", "in/x.jpg"]),
        (["in/*.jpg"], ["in/b.jpg", "in/x.jpg"]),
        (["in/s*"], ["in/sub/c.JPEG"]),
        (["in/**/*.JPEG", "in/a.png"], ["in/sub/c.JPEG", "in/a.png"]),
        (["in/../in/?.png"], ["in/../in/a.png"]),
        (["in/b.jpg", "in/b.jpg"], ["in/b.jpg"]),
        (["in/readme.txt", "nowhere.png"], ["in/readme.txt", "nowhere.png"]),
    ],
)
def test_files_folders_and_globs_name_images_in_order_and_once(folder, given, found):
    paths, skipped = find_images(given)
    assert [str(path) for path in paths] == found
    assert skipped == []


def test_an_absolute_glob_works_too(folder):
    paths, _ = find_images([f"{folder}/in/*.png"])
    assert paths == [folder / "in" / "a.png"]


def test_a_file_whose_name_looks_like_a_glob_is_itself(folder):
    Path("[1].png").write_bytes(Path("in/a.png").read_bytes())
    assert find_images(["[1].png"]) == ([Path("[1].png")], [])


def test_texts_that_name_nothing_are_told(folder):
    paths, skipped = find_images(["*.bmp", "bare"])
    assert paths == []
    assert [str(item) for item in skipped] == [
        "skipped *.bmp: matches no image files",
        "skipped bare: holds no image files",
    ]


def test_reading_stops_at_the_limit_of_good_images_and_tells_of_the_bad_before(folder):
    paths = [Path("nowhere.png"), Path("in/x.jpg"), Path("in/b.jpg"), Path("in/a.png"), Path("in/readme.txt")]
    files, skipped = read_images(paths, limit=1)
    assert files.paths == (Path("in/b.jpg"),)
    assert [item.reason for item in skipped] == ["no such file", "is a folder, not an image"]
    files, skipped = read_images(paths)
    assert files.sizes == ((10, 20), (11, 20))
    assert len(skipped) == 3


def test_an_item_is_a_float_image_with_its_number_and_name(folder):
    files, _ = read_images([Path("in/b.jpg"), Path("in/a.png")])
    image, number = files[1]
    assert (tuple(image.shape), number, files.image_name(1)) == ((3, 20, 11), 1, "in/a.png")
    assert files.leave_out([0]).paths == (Path("in/a.png"),)
