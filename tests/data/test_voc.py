from __future__ import annotations

from pathlib import Path
from typing import Any

import data_trees as trees
import numpy as np
import pytest
from PIL import Image

from detscope.config.schema import DataSettings
from detscope.data.formats.voc import VocXmlError, read_voc_xml
from detscope.data.registry import open_dataset
from detscope.errors import InputError, UsageError


def open_voc(root: Path, **options: Any) -> Any:
    settings = {key: options.pop(key) for key in ("on_bad_data", "images", "held_out") if key in options}
    return open_dataset(DataSettings(name="voc", root=str(root), **settings), **options)


def open_own(folder: Path, split: str = "train", **settings: Any) -> Any:
    return open_dataset(DataSettings(name=str(folder), **settings), split=split)


@pytest.fixture
def devkit(tmp_path: Path) -> Path:
    for year, split, names in (
        ("2007", "trainval", ["000005", "000007"]),
        ("2007", "test", ["000001"]),
        ("2012", "trainval", ["2008_000002"]),
    ):
        trees.write(tmp_path, trees.voc_files(year, split, names, seed=len(names)))
    return tmp_path


def test_boxes_count_pixels_from_one_and_include_the_last(devkit: Path) -> None:
    _, target = open_voc(devkit)[0]
    assert target["boxes"].tolist() == [[10, 5, 50, 45]]  # 11..50 is 40 pixels wide
    assert target["area"].tolist() == [1600]


def test_both_trainval_sets_are_trained_on_and_the_test_set_of_2007_is_evaluated_on(devkit: Path) -> None:
    train, val = open_voc(devkit), open_voc(devkit, split="val")
    assert [Path(train.image_name(index)).stem for index in range(len(train))] == [
        "000005",
        "000007",
        "2008_000002",
    ]
    assert [Path(val.image_name(index)).stem for index in range(len(val))] == ["000001"]
    assert train.classes[:2] == ("background", "aeroplane") and len(train.classes) == 21
    assert train.notes == ()


def test_without_a_test_set_train_and_val_lists_are_used(tmp_path: Path) -> None:
    trees.write(tmp_path, trees.voc_files("2012", "trainval", ["a", "b", "c"]))
    assert len(open_voc(tmp_path)) == 2 and len(open_voc(tmp_path, split="val")) == 1


def test_difficult_objects_are_not_trained_on_and_stand_in_the_ground_truth(devkit: Path) -> None:
    dataset = open_voc(devkit)
    assert len(dataset[1][1]["boxes"]) == 1
    truth = dataset.ground_truth()
    of_image = [row for row in truth["annotations"] if row["image_id"] == dataset[1][1]["image_id"]]
    assert [(row["difficult"], row["ignore"]) for row in of_image] == [(0, 0), (1, 1)]
    assert of_image[1]["bbox"] == [39, 29, 21, 21]
    assert {category["name"] for category in truth["categories"]} == set(dataset.classes[1:])
    assert truth["images"][1]["width"] == trees.WIDTH


def test_a_folder_of_ones_own_has_its_own_classes_the_same_in_both_splits(tmp_path: Path) -> None:
    for number in range(10):
        name = f"screw_{number}"
        kind = "nut" if number == 3 else "screw"
        trees.write(
            tmp_path,
            {
                f"Annotations/{name}.xml": trees.voc_xml([(kind, (1, 1, 20, 20), 0)]),
                f"JPEGImages/{name}.png": trees.picture(number, file_format="PNG"),
            },
        )
    train, val = open_own(tmp_path), open_own(tmp_path, "val")
    assert train.classes == val.classes == ("background", "nut", "screw")
    assert (len(train), len(val)) == (8, 2)
    names = [{opened.image_name(index) for index in range(len(opened))} for opened in (train, val)]
    assert not names[0] & names[1]
    assert "20%" in train.notes[0]
    assert open_own(tmp_path, images=1).classes == train.classes


def test_annotations_beside_their_images_in_split_folders_are_found(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        trees.write(
            tmp_path / split,
            {"one.xml": trees.voc_xml([("cat", (2, 2, 9, 9), 0)]), "one.jpg": trees.picture(1)},
        )
    assert open_own(tmp_path).image_name(0) == "train/one.jpg"
    assert open_own(tmp_path, "val").image_name(0) == "valid/one.jpg"


def test_masks_are_the_values_of_the_segmentation_picture(devkit: Path) -> None:
    with pytest.raises(UsageError, match="no masks"):
        open_voc(devkit, need_masks=True)
    base = devkit / "VOCdevkit" / "VOC2007"
    for name in ("train", "val"):
        trees.write(base, {f"ImageSets/Segmentation/{name}.txt": b"000007\n"})
    values = np.zeros((trees.HEIGHT, trees.WIDTH), np.uint8)
    values[5:45, 10:50] = 1
    values[29:50, 39:60] = 2
    values[0] = 255
    (base / "SegmentationObject").mkdir()
    Image.fromarray(values).save(base / "SegmentationObject" / "000007.png")
    dataset = open_voc(devkit, need_masks=True)
    masks = dataset[0][1]["masks"]
    assert masks.shape == (1, trees.HEIGHT, trees.WIDTH)
    assert masks[0].numpy().tolist() == (values == 1).astype(int).tolist()
    assert dataset.ground_truth()["annotations"][1]["segmentation"]["size"] == [trees.HEIGHT, trees.WIDTH]


BOMB = b"""<?xml version="1.0"?><!DOCTYPE bomb [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;"><!ENTITY d "&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;">
<!ENTITY e "&d;&d;&d;&d;&d;&d;&d;&d;&d;&d;"><!ENTITY f "&e;&e;&e;&e;&e;&e;&e;&e;&e;&e;">
<!ENTITY g "&f;&f;&f;&f;&f;&f;&f;&f;&f;&f;"><!ENTITY h "&g;&g;&g;&g;&g;&g;&g;&g;&g;&g;">]>
<annotation><object><name>&h;</name></object></annotation>"""


def hostile(kind: str, secret: Path) -> bytes:
    if kind == "bomb":
        return BOMB
    if kind == "external":
        return (
            f'<!DOCTYPE a [<!ENTITY x SYSTEM "file://{secret}">]><annotation><object><name>&x;</name></object>'
            "</annotation>"
        ).encode()
    if kind == "outside definition":
        return f'<!DOCTYPE a SYSTEM "file://{secret}"><annotation/>'.encode()
    return {
        "cut": b"<annotation><object><name>hush-hush",
        "binary": bytes(range(256)),
        "empty": b"",
        "page": b"<html><body>hush-hush</body></html>",
    }[kind]


REFUSED_UNREAD = ("bomb", "external", "outside definition")


@pytest.mark.parametrize("kind", ["bomb", "external", "outside definition", "cut", "binary", "empty", "page"])
def test_hostile_xml_is_refused_at_once_and_no_content_is_told(kind: str, devkit: Path) -> None:
    secret = devkit / "secret"
    secret.write_text("hush-hush")
    path = devkit / "VOCdevkit/VOC2007/Annotations/000005.xml"
    path.write_bytes(hostile(kind, secret))
    with pytest.raises(VocXmlError) as caught:
        read_voc_xml(path)
    with pytest.raises(InputError, match=r"image VOCdevkit/VOC2007/Annotations/000005\.xml: ") as stopped:
        open_voc(devkit)
    for error in (caught.value, stopped.value):
        assert ("defines entities or refers to other files" in error.message) == (kind in REFUSED_UNREAD)
        assert "hush" not in f"{error.message}{error.hint}" and "\n" not in error.message
    dataset = open_voc(devkit, on_bad_data="skip")
    assert len(dataset) == 2 and len(dataset.problems) == 1


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        (("20", "20", "10", "30"), "no positive width"),
        (("nan", "1", "5", "5"), "not finite"),
        (("a", "1", "5", "5"), "not four numbers"),
        (("500", "1", "600", "5"), "inside the image"),
        (("50", "1", "200", "5"), "beyond the image"),
    ],
)
def test_bad_boxes_are_named_and_dropped_or_clipped_by_policy(
    box: tuple[Any, Any, Any, Any], reason: str, devkit: Path
) -> None:
    content = trees.voc_xml([("dog", (1, 1, 9, 9), 0), ("cat", box, 0)])
    (devkit / "VOCdevkit/VOC2007/Annotations/000005.xml").write_bytes(content)
    with pytest.raises(InputError, match=r"000005\.jpg, annotation 2: ") as caught:
        open_voc(devkit)
    assert reason in caught.value.message
    assert [problem.annotation_id for problem in open_voc(devkit, on_bad_data="skip").problems] == [2]


def test_a_class_that_voc_does_not_have_is_a_problem_of_voc(devkit: Path) -> None:
    path = devkit / "VOCdevkit/VOC2007/Annotations/000005.xml"
    path.write_bytes(trees.voc_xml([("zebra", (1, 1, 9, 9), 0)]))
    with pytest.raises(InputError, match="unknown class 'zebra'"):
        open_voc(devkit)


def test_an_image_without_objects_has_empty_boxes(devkit: Path) -> None:
    (devkit / "VOCdevkit/VOC2007/Annotations/000005.xml").write_bytes(trees.voc_xml([]))
    assert open_voc(devkit)[0][1]["boxes"].shape == (0, 4)


def test_an_image_of_another_size_than_annotated_stops_before_anything_is_timed(devkit: Path) -> None:
    (devkit / "VOCdevkit/VOC2007/JPEGImages/000005.jpg").write_bytes(trees.picture(1, size=(50, 40)))
    with pytest.raises(InputError, match="is 50 x 40, its annotations say 96 x 72"):
        open_voc(devkit)


def test_voc_that_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_voc(tmp_path)
    assert "detscope data prepare voc" in caught.value.hint
