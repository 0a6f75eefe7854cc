from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco_mask

from detscope import marks
from detscope.config.schema import DataSettings
from detscope.data.contract import OpenRequest
from detscope.data.dataset import FolderDataset
from detscope.data.formats.coco import open_coco_file
from detscope.errors import InputError, UsageError

WIDTH, HEIGHT = 60, 40
CATEGORIES = [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}]


def annotation(number: int, bbox: list[float], image_id: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": number, "image_id": image_id, "category_id": 7, "bbox": bbox, **more}


def open_small(
    folder: Path,
    annotations: list[dict[str, Any]],
    *,
    images: int = 1,
    categories: list[dict[str, Any]] = CATEGORIES,
    with_size: bool = True,
    skip_bad: bool = False,
    limit: int | None = None,
    **needs: bool,
) -> FolderDataset:
    (folder / "images").mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = []
    size = {"width": WIDTH, "height": HEIGHT} if with_size else {}
    for number in range(1, images + 1):
        path = folder / "images" / f"{number}.jpg"
        if not path.exists():
            Image.new("RGB", (WIDTH, HEIGHT), (200, 10, 10)).save(path)
        rows.append({"id": number, "file_name": path.name, **size})
    content = {"images": rows, "annotations": annotations, "categories": categories}
    (folder / "a.json").write_text(json.dumps(content))
    settings = DataSettings(images=limit, on_bad_data="skip" if skip_bad else "stop")
    request = OpenRequest(settings, **needs)
    return open_coco_file("small", folder / "images", folder / "a.json", request)


def test_boxes_become_corners_and_labels_count_from_one(tmp_path: Path) -> None:
    dataset = open_small(
        tmp_path,
        [annotation(1, [10, 5, 20, 10]), annotation(2, [0, 0, 4, 5], category_id=3, area=12, iscrowd=0)],
    )
    image, target = dataset[0]
    assert dataset.classes == ("background", "dog", "cat")
    assert dataset.category_ids == (3, 7)
    assert image.shape == (3, HEIGHT, WIDTH) and image.dtype == torch.float32
    assert image.min() >= 0 and image.max() <= 1 and image[0].mean() > 0.7
    assert target["boxes"].tolist() == [[10, 5, 30, 15], [0, 0, 4, 5]]
    assert target["boxes"].dtype == torch.float32
    assert target["labels"].tolist() == [2, 1] and target["labels"].dtype == torch.int64
    assert target["area"].tolist() == [200, 12]
    assert target["iscrowd"].tolist() == [0, 0]
    assert target["image_id"] == 1
    assert dataset.image_name(0) == "1.jpg"


def test_an_image_without_annotations_has_empty_tensors(tmp_path: Path) -> None:
    people = [{"id": 1, "name": "person", "keypoints": ["nose", "tail"]}]
    marked = annotation(1, [1, 1, 5, 5], 2, category_id=1, keypoints=[1, 1, 2, 3, 3, 1])
    marked["segmentation"] = [[1, 1, 6, 1, 6, 6]]
    dataset = open_small(
        tmp_path, [marked], images=2, categories=people, need_masks=True, need_keypoints=True
    )
    _, target = dataset[0]
    assert target["boxes"].shape == (0, 4) and target["boxes"].dtype == torch.float32
    assert target["labels"].shape == (0,)
    assert target["masks"].shape == (0, HEIGHT, WIDTH)
    assert target["keypoints"].shape == (0, 2, 3)
    assert dataset[1][1]["keypoints"].tolist() == [[[1, 1, 2], [3, 3, 1]]]


def test_a_data_set_without_any_annotation_opens(tmp_path: Path) -> None:
    assert open_small(tmp_path, [], categories=[])[0][1]["boxes"].shape == (0, 4)


BAD_BOXES: dict[str, list[Any]] = {
    "zero height": [10, 10, 5, 0],
    "zero width": [10, 10, 0, 5],
    "inverted": [30, 10, -5, 5],
    "not a number": [10, 10, float("nan"), 5],
    "infinite": [10, 10, float("inf"), 5],
    "outside": [WIDTH + 5, 10, 5, 5],
    "vanishes in float32": [20, 10, 1e-9, 5],
    "three numbers": [1, 2, 3],
}


@pytest.mark.parametrize("bbox", BAD_BOXES.values(), ids=BAD_BOXES.keys())
def test_a_bad_box_stops_by_default_and_names_image_and_annotation(tmp_path: Path, bbox: list[Any]) -> None:
    with pytest.raises(InputError) as caught:
        open_small(tmp_path, [annotation(41, [1, 1, 5, 5]), annotation(42, bbox)])
    assert caught.value.message.startswith("image 1.jpg, annotation 42: ")
    assert "\n" not in caught.value.message
    assert "skip" in caught.value.hint


@pytest.mark.parametrize("bbox", BAD_BOXES.values(), ids=BAD_BOXES.keys())
def test_a_bad_box_is_dropped_and_counted_when_asked(tmp_path: Path, bbox: list[Any]) -> None:
    dataset = open_small(tmp_path, [annotation(41, [1, 1, 5, 5]), annotation(42, bbox)], skip_bad=True)
    assert dataset[0][1]["boxes"].tolist() == [[1, 1, 6, 6]]
    assert [(problem.annotation_id, problem.action) for problem in dataset.problems] == [(42, "dropped")]


def test_overhang_is_clipped_only_by_policy(tmp_path: Path) -> None:
    overhanging = [annotation(9, [50, 30, 20, 20])]
    with pytest.raises(InputError, match="annotation 9: box reaches 10 pixels beyond"):
        open_small(tmp_path, overhanging)
    dataset = open_small(tmp_path, overhanging, skip_bad=True)
    assert dataset[0][1]["boxes"].tolist() == [[50, 30, WIDTH, HEIGHT]]
    assert dataset.problems[0].action == "clipped"


def test_rounding_of_one_pixel_is_cut_off_without_ado(tmp_path: Path) -> None:
    dataset = open_small(tmp_path, [annotation(9, [-0.5, 30, 20, 10.7])])
    assert dataset[0][1]["boxes"].tolist() == [[0, 30, 19.5, HEIGHT]]
    assert dataset.problems == ()


def test_boxes_are_judged_also_where_the_file_gives_no_image_size(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="beyond the image"):
        open_small(tmp_path, [annotation(9, [50, 30, 20, 20])], with_size=False)


def test_an_unknown_category_is_a_problem_of_its_annotation(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="annotation 1: unknown category 99"):
        open_small(tmp_path, [annotation(1, [1, 1, 5, 5], category_id=99)])


def test_crowd_regions_are_in_the_ground_truth_and_not_in_targets(tmp_path: Path) -> None:
    crowd = [annotation(1, [1, 1, 5, 5], iscrowd=1)]
    dataset = open_small(tmp_path, crowd)
    assert len(dataset[0][1]["boxes"]) == 0
    assert [one["iscrowd"] for one in dataset.ground_truth()["annotations"]] == [1]


def test_polygons_and_both_forms_of_run_lengths_give_the_same_mask(tmp_path: Path) -> None:
    expected = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
    expected[10:20, 5:25] = 1
    packed = coco_mask.encode(np.asfortranarray(expected))
    runs = np.diff(np.flatnonzero(np.diff(expected.ravel("F"), prepend=0)), prepend=0)
    counts = [*runs.tolist(), HEIGHT * WIDTH - int(runs.sum())]
    forms = [
        [[5, 10, 25, 10, 25, 20, 5, 20]],
        {"size": [HEIGHT, WIDTH], "counts": packed["counts"].decode()},
        {"size": [HEIGHT, WIDTH], "counts": counts},
    ]
    rows = [annotation(i, [5, 10, 20, 10], segmentation=form) for i, form in enumerate(forms)]
    masks = open_small(tmp_path, rows, need_masks=True)[0][1]["masks"]
    assert masks.dtype == torch.uint8
    for mask in masks:
        assert torch.equal(mask, torch.from_numpy(expected))


HOSTILE_SEGMENTATIONS: dict[str, Any] = {
    "none": None,
    "empty": [],
    "two points": [[1, 1, 5, 5]],
    "odd": [[1, 1, 5, 5, 3, 3, 2]],
    "not numbers": [["a"] * 6],
    "not finite": [[float("nan")] * 6],
    "runs too short": {"size": [HEIGHT, WIDTH], "counts": [5]},
    "runs too long": {"size": [HEIGHT, WIDTH], "counts": [5, 10**9]},
    "negative runs": {"size": [HEIGHT, WIDTH], "counts": [-5, HEIGHT * WIDTH + 5]},
    "packed runs too short": {"size": [HEIGHT, WIDTH], "counts": "00"},
    "packed runs cut": {"size": [HEIGHT, WIDTH], "counts": "oo"},
    "runs of another size": {"size": [2, 3], "counts": [6]},
    "runs of a giant": {"size": [10**6, 10**6], "counts": [10**12]},
    "runs without size": {"counts": [6]},
}


@pytest.mark.parametrize("segmentation", HOSTILE_SEGMENTATIONS.values(), ids=HOSTILE_SEGMENTATIONS.keys())
def test_a_segmentation_without_a_mask_is_refused_before_it_is_drawn(
    tmp_path: Path, segmentation: Any
) -> None:
    rows = [annotation(8, [5, 10, 20, 10], segmentation=segmentation)]
    with pytest.raises(InputError, match=r"image 1\.jpg, annotation 8: "):
        open_small(tmp_path, rows, need_masks=True)
    assert len(open_small(tmp_path, rows, need_masks=True, skip_bad=True)[0][1]["masks"]) == 0


def test_a_polygon_with_huge_coordinates_costs_no_memory(tmp_path: Path) -> None:
    polygon = [[-1e9, 10, 1e9, 10, 1e9, 20, -1e9, 20]]
    masks = open_small(tmp_path, [annotation(1, [0, 10, WIDTH, 10], segmentation=polygon)], need_masks=True)[
        0
    ][1]["masks"]
    assert masks[0, 15].all() and not masks[0, 25].any()


def test_keypoints_are_wanted_from_a_data_set_that_has_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no keypoints"):
        open_small(tmp_path, [annotation(1, [1, 1, 5, 5])], need_keypoints=True)


def test_a_bad_image_stops_before_anything_is_timed(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "2.jpg").write_bytes(b"<html>")
    with pytest.raises(InputError, match=r"2\.jpg: is a text or HTML page"):
        open_small(tmp_path, [], images=3)
    dataset = open_small(tmp_path, [], images=3, skip_bad=True)
    assert len(dataset) == 2
    assert [str(problem) for problem in dataset.problems] == [
        "2.jpg: is a text or HTML page, not an image (dropped)"
    ]


def test_a_data_set_of_bad_images_only_is_refused_also_with_skip(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "1.jpg").write_bytes(b"")
    with pytest.raises(InputError, match="none of its images"):
        open_small(tmp_path, [], skip_bad=True)


def test_the_number_of_images_can_be_limited(tmp_path: Path) -> None:
    assert len(open_small(tmp_path, [], images=4, limit=3)) == 3


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", "[" * 100_000, '{"images": [{}], "annotations": [], "categories": []}'],
    ids=["empty", "cut", "list", "nothing", "nested", "image without id"],
)
def test_a_file_that_is_not_coco_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError) as caught:
        open_coco_file("small", tmp_path, tmp_path / "a.json", OpenRequest(DataSettings()))
    assert "a.json" in caught.value.message and "\n" not in caught.value.message


def test_a_missing_annotation_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.json: cannot be read"):
        open_coco_file("small", tmp_path, tmp_path / "a.json", OpenRequest(DataSettings()))


def test_two_images_with_one_id_are_refused(tmp_path: Path) -> None:
    row = {"id": 1, "file_name": "1.jpg", "width": 1, "height": 1}
    content = {"images": [row, row], "annotations": [], "categories": []}
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="same id"):
        open_coco_file("small", tmp_path, tmp_path / "a.json", OpenRequest(DataSettings()))


def test_reading_marks_load_decode_and_transform(tmp_path: Path) -> None:
    seen: list[str] = []

    class Collector:
        def phase(self, name: str) -> Any:
            raise AssertionError(name)

        @contextmanager
        def region(self, name: str) -> Any:
            seen.append(name)
            yield

    dataset = open_small(tmp_path, [])
    with marks.listening(Collector()):
        dataset[0]
    assert list(dict.fromkeys(seen)) == ["load", "decode", "transform"]
