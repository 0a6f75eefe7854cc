"""Annotation files of strangers: every nonsense is listed by a check and stops a training, at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_trees import coco_content, picture

from detscope.accuracy.coco_format import import_results, import_truth, load_results
from detscope.config.schema import DataSettings
from detscope.data.check import ERROR, CheckReport, check_dataset
from detscope.data.contract import OpenRequest
from detscope.data.registry import open_request
from detscope.errors import InputError

Change = Callable[[dict[str, Any]], object]


def coco_folder(folder: Path, change: Change) -> Path:
    content = coco_content(3)
    for image in content["images"]:
        (folder / "images").mkdir(exist_ok=True)
        (folder / "images" / image["file_name"]).write_bytes(picture(image["id"]))
    change(content)
    (folder / "instances.json").write_text(json.dumps(content))
    return folder


def told(report: CheckReport) -> str:
    return "\n".join(f"{finding.kind} {finding.image}: {finding.reason}" for finding in report.findings)


def put(*way: Any) -> Change:
    """Put the last given value where the others lead to."""

    def change(content: dict[str, Any]) -> None:
        place: Any = content
        for key in way[:-2]:
            place = place[key]
        place[way[-2]] = way[-1]

    return change


def two_classes_of_one_id(content: dict[str, Any]) -> None:
    content["categories"].append({**content["categories"][0], "name": "other"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("annotations", 0, "category_id", 18.5), "unknown category 18.5"),
        (put("annotations", 0, "category_id", None), "unknown category None"),
        (put("annotations", 0, "id", 2**70), "is not a whole number"),
        (put("annotations", 0, "bbox", [1, 2, 10**400, 3]), "not finite"),
        (put("annotations", 0, "bbox", [1, 2, "3", 4]), "box: '3' is not a number"),
        (put("annotations", 0, "bbox", [1, 2, [[]], 4]), "box: a list is not a number"),
        (put("annotations", 0, "area", [1]), "area a list is not a number"),
        (put("images", 0, "id", 1.5), "1.5 is not a whole number"),
        (put("images", 0, "id", 2**70), "is not a whole number"),
        (put("images", 0, "width", -1), "its width is -1, which no image has"),
        (put("images", 0, "height", 1e12), "its height is 1000000000000.0, which no image has"),
        (put("images", 0, "file_name", "a\0b.jpg"), "the name has a NUL in it"),
        (put("images", 0, "file_name", "\ud800.jpg"), "half of a pair"),
        (put("images", 0, "file_name", "n" * 300), "longer than file systems take"),
        (put("images", 0, "file_name", ["a.jpg"]), "a list is not a name"),
        (put("images", 0, "file_name", "/etc/passwd"), "leads out of the data set"),
        (put("images", 0, "file_name", "../../x.jpg"), "leads out of the data set"),
        (put("categories", 0, "id", 1.5), "a category cannot be used: 1.5 is not a whole number"),
        (put("categories", 0, "name", "\udfff"), "half of a pair"),
        (two_classes_of_one_id, "have the same id"),
    ],
)
def test_nonsense_is_listed_by_a_check_and_stops_a_training(
    tmp_path: Path, change: Change, words: str
) -> None:
    folder = coco_folder(tmp_path, change)
    assert words in told(check_dataset(str(folder), workers=0))
    with pytest.raises(InputError) as caught:
        for split in ("train", "val"):
            open_request(OpenRequest(DataSettings(name=str(folder)), split=split))
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ([[10**400] * 6], "polygon is not a list of numbers"),
        ({"size": [1e999, 1], "counts": [1]}, "run lengths need a size"),
    ],
)
def test_masks_of_numbers_beyond_their_type_are_listed(tmp_path: Path, mask: Any, words: str) -> None:
    folder = coco_folder(tmp_path, put("annotations", 0, "segmentation", mask))
    assert words in told(check_dataset(str(folder), workers=0))


def test_ids_as_texts_and_whole_floats_are_meant_as_numbers(tmp_path: Path) -> None:
    folder = coco_folder(tmp_path, put("annotations", 0, "category_id", 18.0))
    assert check_dataset(str(folder), workers=0).errors == 0


def test_a_name_that_stays_within_the_data_set_is_read(tmp_path: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        content["images"][0]["file_name"] = f"../images/{content['images'][0]['file_name']}"

    assert check_dataset(str(coco_folder(tmp_path, change)), workers=0).errors == 0


def test_links_that_lead_out_of_the_data_set_are_told(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    folder = coco_folder(tmp_path / "set", lambda content: None)
    inside = sorted((folder / "images").iterdir())[0]
    inside.rename(tmp_path / "elsewhere.jpg")
    inside.symlink_to(tmp_path / "elsewhere.jpg")
    assert "1 image files are links that lead out of the data set" in told(check_dataset(str(folder)))


def test_more_objects_of_one_image_than_the_limit_are_refused_by_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = coco_folder(tmp_path, lambda content: content["annotations"].extend(content["annotations"] * 9))
    monkeypatch.setenv("DETSCOPE_LIMIT_IMAGE_OBJECTS", "20")
    with pytest.raises(InputError, match="30 objects, the limit is 20") as caught:
        check_dataset(str(folder))
    assert "DETSCOPE_LIMIT_IMAGE_OBJECTS" in caught.value.hint


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = coco_folder(tmp_path, lambda content: None)
    monkeypatch.setenv("DETSCOPE_LIMIT_ANNOTATION_BYTES", "100")
    with pytest.raises(InputError, match="bytes, the limit is 100"):
        check_dataset(str(folder))


def test_json_that_is_nested_without_end_is_one_line(tmp_path: Path) -> None:
    folder = coco_folder(tmp_path, lambda content: None)
    (folder / "instances.json").write_text('{"annotations": ' + "[" * 200_000)
    with pytest.raises(InputError, match="not JSON"):
        check_dataset(str(folder))


def yolo_folder(folder: Path, described: str, label: str = "0 0.5 0.5 0.2 0.2\n") -> Path:
    for split in ("train", "val"):
        (folder / "images" / split).mkdir(parents=True)
        (folder / "labels" / split).mkdir(parents=True)
        (folder / "images" / split / "a.jpg").write_bytes(picture(len(split)))
        (folder / "labels" / split / "a.txt").write_text(label)
    if described:
        (folder / "data.yaml").write_text(described)
    return folder


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10)
)


@pytest.mark.parametrize(
    ("described", "words"),
    [
        (LAUGHS + "names: *a9\n", "values, the limit is 200,000"),
        (MERGED + "names: [cat]\n", "values, the limit is 200,000"),
        ("a: &a [*a]\nnames: [cat]\n", "is not YAML"),
        ("names: [[cat]]\n", "a class name in its YAML file is a list"),
        ("names: {.inf: cat}\n", "class numbers in its YAML file are not numbers"),
        ("names: {999999999: cat}\n", "1,000,000,000 classes, the limit is 100,000"),
        ('names: ["\\0"]\n', "has a NUL in it"),
        ("hello\n", "data.yaml: has no keys"),
        ("names: 5\n", "names in its YAML file is 5"),
        ("names: [cat]\ntrain: images/none\nval: images/val\n", "no images in 'images/none'"),
        ("names: [cat]\ntrain: {a: b}\n", "train in its YAML file is a table"),
        ("names: [cat]\ntrain: list.txt\nval: images/val\n", "/etc/passwd leads out of the data set"),
    ],
)
def test_a_description_that_says_too_much_or_nonsense_is_refused(
    tmp_path: Path, described: str, words: str
) -> None:
    folder = yolo_folder(tmp_path, described)
    (folder / "list.txt").write_text("images/train/a.jpg\n/etc/passwd\n")
    with pytest.raises(InputError) as caught:
        check_dataset(str(folder))
    assert words in caught.value.message


def test_aliases_that_repeat_a_little_are_read(tmp_path: Path) -> None:
    described = "one: &one cat\nnames: [*one, dog]\n"
    assert check_dataset(str(yolo_folder(tmp_path, described))).classes == ("cat", "dog")


def test_class_names_that_are_not_text_are_one_line(tmp_path: Path) -> None:
    folder = yolo_folder(tmp_path, "")
    (folder / "classes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"classes\.txt: is not text"):
        check_dataset(str(folder))


def test_a_label_of_other_digits_is_no_class(tmp_path: Path) -> None:
    folder = yolo_folder(tmp_path, "", "\u00b2 0.5 0.5 0.2 0.2\n0 0.5 0.5 0.2 0.2\n")
    assert "line is not a class and numbers" in told(check_dataset(str(folder)))


def test_results_of_half_a_class_are_refused(tmp_path: Path) -> None:
    content = coco_content(2)
    row = {"image_id": 1, "category_id": 18.5, "bbox": [1, 2, 3, 4], "score": 0.5}
    (tmp_path / "results.json").write_text(json.dumps([row]))
    with pytest.raises(InputError, match="not a whole number"):
        import_results(load_results(tmp_path / "results.json"), import_truth(content))


def test_a_label_file_that_is_no_text_is_an_error_of_a_check_as_it_stops_a_training(tmp_path: Path) -> None:
    folder = yolo_folder(tmp_path, "names: [cat]\n")
    (folder / "labels" / "train" / "a.txt").write_bytes(b"\xff\x00\xfe")
    (found,) = (one for one in check_dataset(str(folder)).findings if "cannot be read" in one.reason)
    assert found.kind == ERROR
