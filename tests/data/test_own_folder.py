from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import data_trees as trees
import pytest

from detscope import parts
from detscope.config.schema import DataSettings
from detscope.data.contract import DatasetFormat
from detscope.data.registry import class_names, list_datasets, open_dataset, recognise_folder
from detscope.errors import InputError, UsageError


def open_own(folder: Path, split: str = "train", **options: Any) -> Any:
    needs = {key: options.pop(key) for key in ("need_masks", "need_keypoints") if key in options}
    return open_dataset(DataSettings(name=str(folder), **options), split=split, **needs)


def names_of(dataset: Any) -> list[str]:
    return [dataset.image_name(index) for index in range(len(dataset))]


LINES = "1 0.5 0.5 0.25 0.5\n\n0 0.1 0.1 0.3 0.1 0.3 0.4\n"
PICTURES = {f"images/{number}.jpg": trees.picture(number) for number in range(4)}


def yolo(folder: Path, text: str = LINES, **more: str) -> Path:
    trees.write(folder, PICTURES)
    trees.write(folder, {"labels/0.txt": text.encode(), "classes.txt": b"cat\ndog\n"})
    return trees.write(folder, {name: content.encode() for name, content in more.items()})


def test_yolo_lines_become_boxes_in_pixels_and_polygons_their_boxes(tmp_path: Path) -> None:
    dataset = open_own(yolo(tmp_path), held_out=0.3)
    everything = [*names_of(dataset), *names_of(open_own(tmp_path, "val", held_out=0.3))]
    assert sorted(everything) == [f"images/{number}.jpg" for number in range(4)]
    part = dataset if "images/0.jpg" in names_of(dataset) else open_own(tmp_path, "val", held_out=0.3)
    target = part[names_of(part).index("images/0.jpg")][1]
    assert target["labels"].tolist() == [2, 1]
    assert target["boxes"].flatten().tolist() == pytest.approx(
        [36, 18, 60, 54, 9.6, 7.2, 28.8, 28.8], abs=1e-4
    )
    assert part.classes == ("background", "cat", "dog") and part.category_ids == (0, 1)


def test_an_image_without_a_label_file_has_no_objects(tmp_path: Path) -> None:
    dataset = open_own(yolo(tmp_path))
    without = next(index for index, name in enumerate(names_of(dataset)) if name != "images/0.jpg")
    assert len(dataset[without][1]["boxes"]) == 0


YAMLS = {
    "list of names": "train: images/train\nval: images/val\nnames: [cat, dog]\n",
    "numbered names": "path: .\ntrain: images/train\nval: images/val\nnames:\n  0: cat\n  1: dog\n",
    "roboflow": "train: ../images/train\nval: ../images/val\nnc: 2\nnames: ['cat', 'dog']\n",
    "lists of files": "train: train.txt\nval: [val.txt]\nnames: [cat, dog]\n",
}


@pytest.mark.parametrize("yaml", YAMLS.values(), ids=YAMLS.keys())
def test_data_yaml_tells_splits_and_names(tmp_path: Path, yaml: str) -> None:
    trees.write(
        tmp_path,
        {
            "images/train/a.jpg": trees.picture(1),
            "images/val/b.jpg": trees.picture(2),
            "labels/train/a.txt": b"1 0.5 0.5 0.5 0.5",
            "train.txt": b"./images/train/a.jpg\n",
            "val.txt": b"images/val/b.jpg\n",
            "data.yaml": yaml.encode(),
        },
    )
    train, val = open_own(tmp_path), open_own(tmp_path, "val")
    assert names_of(train) == ["images/train/a.jpg"] and names_of(val) == ["images/val/b.jpg"]
    assert train.classes == ("background", "cat", "dog")
    assert train[0][1]["labels"].tolist() == [2]
    assert names_of(open_own(tmp_path / "data.yaml")) == ["images/train/a.jpg"]


BAD_LINES = {
    "2 0.5 0.5 0.1 0.1": "unknown class 2",
    "cat 0.5 0.5 0.1 0.1": "not a class and numbers",
    "0 0.5 0.5 0.1": "3 numbers",
    "0 0.5 nan 0.1 0.1": "not finite",
    "0 0.5 0.5 0 0.1": "no positive width",
    "0 2 2 0.1 0.1": "no part of it is inside",
    "0 0.95 0.5 0.3 0.1": "beyond the image",
}


@pytest.mark.parametrize(("line", "reason"), BAD_LINES.items(), ids=BAD_LINES.keys())
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: str, reason: str) -> None:
    text = f"0 0.5 0.5 0.1 0.1\n{line}\n"
    everywhere = {f"labels/{number}.txt": text for number in range(4)}
    folder = yolo(tmp_path, text, **everywhere)
    with pytest.raises(InputError, match=r"\.jpg, annotation 2: ") as caught:
        open_own(folder)
    assert reason in caught.value.message
    assert len(open_own(folder, on_bad_data="skip").problems) == 3


def test_masks_come_from_polygons_and_are_missed_where_there_are_boxes_only(tmp_path: Path) -> None:
    text = "0 0.25 0.25 0.75 0.25 0.75 0.75 0.25 0.75\n"
    folder = yolo(tmp_path, **{f"labels/{number}.txt": text for number in range(4)})
    masks = open_own(folder, need_masks=True)[0][1]["masks"]
    assert masks[0, 36, 48] == 1 and masks[0, 2, 2] == 0
    (folder / "labels/1.txt").write_text("0 0.5 0.5 0.1 0.1")
    (folder / "labels/2.txt").write_text("0 0.5 0.5 0.1 0.1")
    with pytest.raises(InputError, match="has no polygon"):
        open_own(folder, need_masks=True)


def test_labels_beside_the_images_without_class_names_are_classes_by_number(tmp_path: Path) -> None:
    for number in range(5):
        trees.write(
            tmp_path,
            {f"{number}.jpg": trees.picture(number), f"{number}.txt": f"{number} .5 .5 .1 .1".encode()},
        )
    assert open_own(tmp_path).classes == ("background", *(f"class {number}" for number in range(5)))


def coco(folder: Path, layout: dict[str, str], counts: tuple[int, int] = (4, 3)) -> Path:
    """`layout` maps annotation files to the folder of their images."""
    for (file, images), (first, count) in zip(
        layout.items(), ((1, counts[0]), (501, counts[1])), strict=False
    ):
        content = trees.coco_content(count, first)
        trees.write(folder, {file: json.dumps(content).encode()})
        trees.write(
            folder / images, {image["file_name"]: trees.picture(image["id"]) for image in content["images"]}
        )
    return folder


COCO_LAYOUTS = {
    "as published": {
        "annotations/instances_train2017.json": "train2017",
        "annotations/instances_val2017.json": "val2017",
    },
    "images below images": {
        "annotations/instances_train2017.json": "images/train2017",
        "annotations/instances_val2017.json": "images/val2017",
    },
    "exported": {"train/_annotations.coco.json": "train", "valid/_annotations.coco.json": "valid"},
    "flat": {"train.json": "images", "val.json": "images"},
}


@pytest.mark.parametrize("layout", COCO_LAYOUTS.values(), ids=COCO_LAYOUTS.keys())
def test_coco_files_and_images_are_found_where_people_put_them(
    tmp_path: Path, layout: dict[str, str]
) -> None:
    folder = coco(tmp_path, layout)
    train, val = open_own(folder), open_own(folder, "val")
    assert (len(train), len(val)) == (4, 3) and train.notes == ()
    assert train.category_ids == (1, 18) and train.classes == ("background", "person", "dog")
    assert len(train[0][1]["boxes"]) == 2, "crowd regions are not trained on"
    assert len(train[3][1]["boxes"]) == 0
    assert [row["iscrowd"] for row in val.ground_truth()["annotations"]] == [0, 0, 1] * 2


def test_one_annotation_file_is_divided_by_names_and_that_is_said(tmp_path: Path) -> None:
    folder = trees.coco_folder(tmp_path, trees.coco_content(10))
    train, val = open_own(folder), open_own(folder, "val")
    assert (len(train), len(val)) == (8, 2) and not set(names_of(train)) & set(names_of(val))
    assert "kept for evaluation" in train.notes[0]
    assert names_of(open_own(folder / "annotations.json")) == names_of(train)


def test_only_the_images_for_evaluation_are_there(tmp_path: Path) -> None:
    folder = coco(tmp_path, {"annotations/instances_val2017.json": "val2017"})
    assert len(open_own(folder, "val")) == 4
    assert "all there is" in open_own(folder).notes[0]


def test_several_files_that_say_no_split_are_asked_about(tmp_path: Path) -> None:
    coco(tmp_path, {"a.json": "images", "b.json": "images"})
    with pytest.raises(InputError, match=r"which annotation file is meant: a\.json, b\.json"):
        open_own(tmp_path)


def test_ground_truth_numbers_objects_afresh_and_keeps_masks_where_asked_for(tmp_path: Path) -> None:
    content = trees.coco_content(3)
    for row in content["annotations"]:
        row["id"] = 7
    folder = trees.coco_folder(tmp_path, content)
    dataset = open_own(folder, need_masks=True)
    truth = dataset.ground_truth()
    assert [row["id"] for row in truth["annotations"]] == list(range(1, len(truth["annotations"]) + 1))
    assert truth["annotations"][0]["bbox"] == [5, 10, 30, 30] and truth["annotations"][0]["category_id"] == 18
    assert isinstance(truth["annotations"][0]["segmentation"], list)
    assert truth["annotations"][2]["segmentation"]["size"] == [trees.HEIGHT, trees.WIDTH]
    assert any("7" in str(problem) for problem in dataset.problems)


def test_images_alone_can_be_evaluated_on_and_not_trained_on(tmp_path: Path) -> None:
    trees.write(tmp_path, {"a.jpg": trees.picture(1), "deep/b.png": trees.picture(2, file_format="PNG")})
    assert recognise_folder(tmp_path).name == "images"
    assert names_of(open_own(tmp_path, "val")) == ["a.jpg", "deep/b.png"]
    with pytest.raises(InputError, match="nothing to train on"):
        open_own(tmp_path)


def test_what_is_no_data_set_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither annotations nor images"):
        open_own(tmp_path)
    with pytest.raises(UsageError, match="unknown data set"):
        open_own(tmp_path / "missing")
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(InputError, match="is a file and not a data set"):
        open_own(tmp_path / "x.txt")


def test_a_format_from_elsewhere_is_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened by name and as a folder, asked for class names: nothing else has to know of it."""
    monkeypatch.setattr(parts, "_added", {})
    (tmp_path / "mine.csv").write_text("")
    seen: list[Any] = []
    mine = DatasetFormat(
        "mine",
        "one's own",
        open_named=lambda request: seen.append(request.split),  # type: ignore[arg-type, return-value]
        open_folder=lambda folder, request, name: seen.append((folder, name)),  # type: ignore[arg-type, return-value]
        recognises=lambda folder: (folder / "mine.csv").is_file(),
        order=0,
        class_lists=(("left", "right"),),
    )
    parts.add_part("datasets", mine)
    assert mine in list_datasets()
    open_dataset(DataSettings(name="mine"))
    open_dataset(DataSettings(name=str(tmp_path)))
    assert seen == ["train", (tmp_path, tmp_path.name)]
    assert class_names("mine", 3) == ("background", "left", "right")
