"""Right, wrong, missed: the best score to cut at, and the worst images."""

from __future__ import annotations

import json

import pytest
from generated_sets import generated

from detscope.accuracy.coco import measure_coco
from detscope.accuracy.coco_format import import_results, import_truth
from detscope.accuracy.measures import export_content, make_table_rows, measure_accuracy
from detscope.accuracy.records import no_detections
from detscope.accuracy.verdicts import find_operating_point, find_worst_images


def square(x: float) -> list[float]:
    return [x, 0.0, 10.0, 10.0]


def scene(objects: list[tuple[int, float]], found: list[tuple[int, float, float]], **more):
    content = {
        "images": [{"id": number, "width": 100, "height": 100} for number in (1, 2, 3)],
        "annotations": [
            {"id": number, "image_id": image, "category_id": 1, "bbox": square(x), **more}
            for number, (image, x) in enumerate(objects, start=1)
        ],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    }
    truth = import_truth(content)
    rows = [
        {"image_id": image, "category_id": 1, "bbox": square(x), "score": score} for image, x, score in found
    ]
    return truth, import_results(rows, truth).detections


def test_the_best_cut_balances_wrong_and_missed():
    """Three objects. Scores .9 right, .8 right, .4 wrong, .3 right, .2 and .1 wrong.

    F1 = 2 * right / (counted + objects): at .8 4/5, at .4 4/6, at .3 6/7, at .2 6/8: the cut is .3.
    """
    found = [(1, 0, 0.9), (2, 0, 0.8), (1, 50, 0.4), (3, 0, 0.3), (2, 50, 0.2), (3, 50, 0.1)]
    truth, given = scene([(1, 0), (2, 0), (3, 0)], found)
    point = find_operating_point(measure_coco(truth, given))
    assert point is not None
    assert (point.score, point.precision, point.recall) == (0.3, 0.75, 1.0)
    assert point.f1 == pytest.approx(6 / 7)


def test_the_worst_images_come_first_and_those_without_errors_do_not_come():
    """Image 1: one right. Image 2: two missed, one wrong. Image 3: one right, one missed."""
    truth, given = scene(
        [(1, 0), (2, 0), (2, 50), (3, 0), (3, 50)], [(1, 0, 0.9), (2, 80, 0.9), (3, 0, 0.9), (3, 80, 0.1)]
    )
    worst = find_worst_images(truth, measure_coco(truth, given), 0.5, 20)
    assert [truth.image_ids[one.image] for one in worst] == [2, 3]
    assert (worst[0].missed.tolist(), worst[0].wrong.tolist(), worst[0].f1) == ([1, 2], [1], 0.0)
    assert (worst[1].missed.tolist(), worst[1].right.tolist(), worst[1].found.tolist()) == ([4], [2], [3])
    assert worst[1].f1 == pytest.approx(2 / 3)
    assert len(find_worst_images(truth, measure_coco(truth, given), 0.5, 1)) == 1


def test_detections_of_crowds_are_neither_right_nor_wrong():
    truth, given = scene([(1, 0)], [(1, 0, 0.9)], iscrowd=1)
    accuracy = measure_coco(truth, given)
    assert find_operating_point(accuracy) is None
    assert find_worst_images(truth, accuracy, 0.0, 20) == []


def test_without_detections_images_with_most_objects_are_worst():
    truth, _ = scene([(1, 0), (2, 0), (2, 50)], [])
    accuracy = measure_coco(truth, no_detections())
    assert find_operating_point(accuracy) is None
    assert [one.image for one in find_worst_images(truth, accuracy, 0.0, 20)] == [1, 0]


def test_all_that_is_said_is_plain_json_with_null_for_undefined():
    content, results = generated(4, masks=True)
    truth = import_truth(content, masks=True)
    measured = measure_accuracy(truth, import_results(results, truth).detections)
    said = json.loads(json.dumps(export_content(measured), allow_nan=False))
    assert said["coco_box"]["figures"] == measured.coco["boxes"].compute_figures()
    assert len(said["coco_mask"]["classes"]) == len(truth.category_ids)
    assert "coco_keypoints" not in said
    rows = make_table_rows(measured, 3, 40)
    assert (3, 40, "coco_box", "AP", None, said["coco_box"]["figures"]["AP"]) in rows
    assert (3, 40, "voc10", "AP", None, said["voc10"]["mean"]) in rows
    assert {row[2] for row in rows} == {"coco_box", "coco_mask", "voc07", "voc10"}


def test_nothing_found_is_zero_for_masks_too():
    content, _ = generated(4, masks=True)
    said = export_content(measure_accuracy(import_truth(content, masks=True), no_detections()))
    assert (said["coco_mask"]["figures"]["AP"], said["voc07"]["mean"]) == (0.0, 0.0)
    assert said["operating_point"] is None


def test_masks_that_the_data_set_has_not_are_said_to_be_unmeasured():
    content, results = generated(4, masks=True)
    truth = import_truth(content)
    measured = measure_accuracy(truth, import_results(results, truth).detections)
    assert measured.cannot_tell == ("accuracy of masks: the data set has none",)
