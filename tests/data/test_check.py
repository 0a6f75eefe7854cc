from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import data_trees as trees
import msgspec
import pytest
from PIL import Image
from rich.console import Console

from detscope.data.check import CheckReport, check_dataset, check_images, measure_padding
from detscope.errors import InputError
from detscope.report.checks import DataCheck, check_sections, histogram_charts
from detscope.report.render.picture import draw_charts
from detscope.report.render.terminal import print_sections
from detscope.sessions.check import run_check


def shown(check: dict[str, Any], folder: str | None = None, width: int = 120) -> str:
    """What the terminal shows of a check."""
    text = io.StringIO()
    content = msgspec.convert(check, DataCheck, strict=False)
    print_sections(check_sections(content, folder), Console(file=text, width=width))
    return text.getvalue()


def reasons(report: CheckReport, kind: str = "error") -> dict[tuple[str, int | None], str]:
    return {(f.image, f.annotation_id): f.reason for f in report.findings if f.kind == kind}


def folder_with(tmp_path: Path, count: int = 6, **changes: dict[str, Any]) -> Path:
    """Images 1 to `count`; `changes` are further values of annotation 1001, 1002, ..."""
    content = trees.coco_content(count)
    for row in content["annotations"]:
        row.update(changes.get(f"a{row['id']}", {}))
    return trees.coco_folder(tmp_path / "own", content)


def test_a_good_data_set_has_no_findings_and_is_described(tmp_path: Path) -> None:
    report = check_dataset(str(folder_with(tmp_path)))
    assert report.findings == () and report.errors == 0
    assert (report.layout, report.splits) == ("coco", {"train": 5, "val": 1})
    figures = report.figures
    assert (figures["images"], figures["usable_images"], figures["objects"]) == (6, 6, 15)
    assert (figures["crowd"], figures["difficult"], figures["images_without_objects"]) == (5, 0, 1)
    assert figures["formats"] == {"JPEG RGB": 6}
    assert figures["histograms"]["boxes_per_image"] == {
        "labels": ["0", "1", "2", "3 to 4"],
        "counts": [1, 0, 0, 5],
        "unit": "number of images",
    }
    assert figures["histograms"]["box_size"]["counts"] == [15]
    assert figures["histograms"]["classes"]["labels"] == ["person", "dog"]
    assert figures["histograms"]["classes"]["counts"] == [10, 5]
    assert len(report.images) == 6


BAD = {
    "zero height": ({"bbox": [5, 10, 30, 0]}, "no positive width and height"),
    "inverted": ({"bbox": [35, 10, -30, 30]}, "no positive width and height"),
    "not finite": ({"bbox": [float("nan"), 10, 30, 30]}, "not finite"),
    "outside": ({"bbox": [500, 10, 30, 30]}, "inside the image"),
    "beyond": ({"bbox": [80, 10, 30, 30]}, "14 pixels beyond"),
    "category": ({"category_id": 99}, "unknown category 99"),
    "mask": ({"segmentation": {"size": [1, 1], "counts": [1]}}, "mask is 1 x 1"),
}


@pytest.mark.parametrize(("change", "reason"), BAD.values(), ids=BAD.keys())
def test_a_bad_annotation_is_listed_with_image_and_id(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    found = reasons(check_dataset(str(folder_with(tmp_path, a1001=change))))
    assert list(found) == [("000000000001.jpg", 1001)]
    assert reason in found["000000000001.jpg", 1001]


def test_images_and_ids_that_are_there_twice_are_told(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, 12, a1002={"id": 1001})
    content = json.loads((folder / "annotations.json").read_text())
    content["images"].append({**content["images"][2], "file_name": "again.jpg"})
    content["annotations"].append({**content["annotations"][0], "id": 5000, "image_id": 999})
    content["annotations"].append({**content["annotations"][0], "id": 5001})
    (folder / "annotations.json").write_text(json.dumps(content))
    images = folder / "images"
    (images / "000000000004.jpg").write_bytes((images / "000000000005.jpg").read_bytes())
    report = check_dataset(str(folder))
    assert reasons(report) == {("again.jpg", None): "has the same id 3 as image 000000000003.jpg"}
    notes = reasons(report, "note")
    assert "image 999" in notes["(no image)", 5000]
    assert "2 annotations" in notes["(several images)", 1001]
    assert "twice" in notes["000000000001.jpg", None]
    assert [group["files"] for group in report.duplicates] == [["000000000004.jpg", "000000000005.jpg"]]


def encoded(mode: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (trees.WIDTH, trees.HEIGHT)).save(buffer, **options)
    return buffer.getvalue()


def test_unusual_but_good_images_are_no_findings(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = trees.picture(1, (trees.HEIGHT, trees.WIDTH), exif=exif)
    kinds = [
        encoded("L", format="JPEG"),
        encoded("CMYK", format="JPEG"),
        encoded("RGBA", format="PNG"),
        encoded("P", format="PNG"),
        encoded("I;16", format="PNG"),
        turned,
    ]
    for number, raw in enumerate(kinds, start=1):
        (folder / "images" / f"{number:012d}.jpg").write_bytes(raw)
    report = check_dataset(str(folder))
    assert report.errors == 0, report.findings
    assert report.figures["turned_by_exif"] == 1
    assert len(report.figures["formats"]) == 6


def png_header(width: int, height: int) -> bytes:
    raw = bytearray(encoded("RGB", format="PNG"))
    raw[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    import zlib

    raw[29:33] = zlib.crc32(bytes(raw[12:29])).to_bytes(4, "big")
    return bytes(raw)


@pytest.mark.parametrize("side", [12_000, 20_000])
def test_pictures_beyond_the_pixel_limit_are_refused_by_their_header(tmp_path: Path, side: int) -> None:
    folder = folder_with(tmp_path)
    (folder / "images" / "000000000002.jpg").write_bytes(png_header(side, side))
    assert "pixels, the limit" in reasons(check_dataset(str(folder)))["000000000002.jpg", None]


def test_sizes_that_disagree_are_told(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    (folder / "images" / "000000000002.jpg").write_bytes(trees.picture(2, (50, 40)))
    assert reasons(check_dataset(str(folder))) == {
        ("000000000002.jpg", None): "is 50 x 40, its annotations say 96 x 72"
    }


def test_a_data_set_of_bad_images_only_is_still_listed_one_by_one(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    for path in (folder / "images").iterdir():
        path.write_bytes(b"")
    report = check_dataset(str(folder))
    assert report.errors == 6 and report.figures["usable_images"] == 0 and report.figures["cost"] == {}


def test_several_processes_find_the_same_as_one(tmp_path: Path) -> None:
    for number in range(140):
        raw = trees.picture(number, (40, 30))
        trees.write(tmp_path, {f"{number}.jpg": raw[:300] if number % 10 == 0 else raw})
    images = [(f"{number}.jpg", (40, 30)) for number in range(140)]
    alone = check_images(tmp_path, images, workers=1)
    assert check_images(tmp_path, images, workers=2) == alone
    assert [look.file_name for look in alone if look.problem] == [f"{n}.jpg" for n in range(0, 140, 10)]


def test_padding_is_the_share_of_pixels_that_belong_to_no_image() -> None:
    # a batch of 64 x 32 and 32 x 64 is padded to two of 64 x 64: half of it is no image
    assert measure_padding([(64, 32), (32, 64)], [[0, 1]]) == pytest.approx(0.5)
    assert measure_padding([(64, 32), (32, 64)], [[0], [1]]) == 0
    assert measure_padding([(33, 32)], [[0]]) == pytest.approx(1 - 33 / 64)


def test_grouping_pads_less_where_shapes_are_mixed(tmp_path: Path) -> None:
    sizes = [(96, 48), (48, 96)] * 8
    for number, size in enumerate(sizes):
        trees.write(tmp_path, {f"{number}.jpg": trees.picture(number, size)})
    shares = check_dataset(str(tmp_path)).figures["cost"]["padding_share"]
    assert shares["2"]["grouped_by_aspect"] < 0.05 < shares["2"]["random"]


def test_the_findings_are_written_beside_and_shown(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, a1001={"bbox": [5, 10, 30, 0]})
    (folder / "images" / "000000000002.jpg").write_bytes(b"")
    before = trees.state_of(folder)
    check, written = run_check(str(folder), "data", tmp_path / "checks")
    assert trees.state_of(folder) == before
    assert json.loads((written / "check.json").read_text())["errors"] == 2
    rows = (written / "images.csv").read_text().splitlines()
    assert len(rows) == 7 and "is empty (0 bytes)" in "".join(rows)
    with Image.open(written / "histograms.png") as drawn:
        assert drawn.size[0] > 1000
    text = shown(check, str(written))
    for words in ("2 errors", "000000000002.jpg", "is empty", "1001", "crowd regions"):
        assert words in text, words
    assert "padding in batches of 2: " in " ".join(text.split())


def test_names_that_would_steer_a_terminal_stay_text(tmp_path: Path) -> None:
    histograms = {
        "classes": {"labels": ["<img src=x>", "[red]\x1b[31m"], "counts": [3, 1], "unit": "objects"}
    }
    check = {"name": "[bold]x\x1b[0m", "layout": "coco", "figures": {"histograms": histograms}}
    text = shown(check, width=100)
    assert "\x1b" not in text and "[bold]x" in text
    charts = histogram_charts(msgspec.convert(check, DataCheck, strict=False))
    assert len(charts) == 1
    assert draw_charts(charts, title="\x1b[31m").startswith(b"\x89PNG")


def test_voc_and_yolo_and_names_are_checked_too(tmp_path: Path) -> None:
    trees.write(tmp_path / "voc", trees.voc_files("2007", "trainval", ["a", "b"]))
    report = check_dataset("voc", str(tmp_path / "voc"))
    assert report.splits == {"train": 1, "val": 1} and report.figures["difficult"] == 1
    trees.write(
        tmp_path / "y", {"a.jpg": trees.picture(1), "a.txt": b"0 .5 .5 .1 .1", "b.jpg": trees.picture(2)}
    )
    assert check_dataset(str(tmp_path / "y")).layout == "yolo"
    for name in ("pets", "coco"):
        with pytest.raises(InputError) as caught:
            check_dataset(name, str(tmp_path))
        assert f"detscope data prepare {name}" in caught.value.hint
