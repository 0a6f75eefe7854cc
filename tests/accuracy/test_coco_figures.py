"""COCO's figures against pycocotools, and what pycocotools cannot do."""

from __future__ import annotations

import numpy as np
import pytest
from generated_sets import generated, reference

from detscope.accuracy.coco import measure_coco
from detscope.accuracy.coco_format import import_results, import_truth
from detscope.accuracy.records import no_detections

KINDS = {"boxes": "bbox", "masks": "segm", "keypoints": "keypoints"}


def compared(seed: int, kind: str) -> None:
    content, results = generated(seed, masks=kind == "masks", keypoints=kind == "keypoints")
    truth = import_truth(content, masks=kind == "masks", keypoints=kind == "keypoints")
    ours = measure_coco(truth, import_results(results, truth).detections, kind)
    wanted, evaluation = reference(content, results, KINDS[kind])
    figures = np.array([-1.0 if value is None else value for value in ours.compute_figures().values()])
    np.testing.assert_allclose(figures, wanted, atol=1e-9, rtol=0)
    precision = evaluation.eval["precision"].transpose(2, 3, 4, 0, 1)
    np.testing.assert_allclose(np.nan_to_num(ours.precision, nan=-1.0), precision, atol=1e-9, rtol=0)
    recall = evaluation.eval["recall"].transpose(1, 2, 3, 0)
    np.testing.assert_allclose(np.nan_to_num(ours.recall, nan=-1.0), recall, atol=1e-9, rtol=0)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("kind", ["boxes", "masks"])
def test_all_figures_and_every_point_of_every_curve_equal_pycocotools(seed, kind):
    compared(seed, kind)


@pytest.mark.parametrize("seed", range(10))
def test_keypoint_figures_equal_pycocotools(seed):
    compared(seed, "keypoints")


def content_of(*objects: tuple[int, int, list[float]], images: int = 2, classes: int = 2, **more) -> dict:
    """Objects as (image, class, box); `iscrowd` and `area` are missing on purpose."""
    things = [
        {"id": number, "image_id": image, "category_id": category, "bbox": box, **more}
        for number, (image, category, box) in enumerate(objects, start=1)
    ]
    return {
        "images": [{"id": number, "width": 100, "height": 100} for number in range(1, images + 1)],
        "annotations": things,
        "categories": [{"id": number, "name": f"class {number}"} for number in range(1, classes + 1)],
    }


BOX = [10.0, 10.0, 40.0, 40.0]


def figures_of(content: dict, results: list[dict]) -> dict:
    truth = import_truth(content)
    return measure_coco(truth, import_results(results, truth).detections).compute_figures()


def row(image: int, category: int, box: list[float], score: float) -> dict:
    return {"image_id": image, "category_id": category, "bbox": box, "score": score}


def test_no_detections_are_zero_where_there_is_ground_truth_and_undefined_where_there_is_none():
    figures = figures_of(content_of((1, 1, BOX)), [])
    assert (figures["AP"], figures["AP50"], figures["AP_medium"], figures["AR_100"]) == (0.0, 0.0, 0.0, 0.0)
    assert (figures["AP_small"], figures["AP_large"], figures["AR_large"]) == (None, None, None)


@pytest.mark.parametrize("results", [[], [row(1, 1, BOX, 0.9)]])
@pytest.mark.parametrize(
    "content", [content_of(), content_of(images=0), content_of(classes=0), content_of((1, 1, BOX), iscrowd=1)]
)
def test_without_an_object_to_find_everything_is_undefined(content, results):
    assert set(figures_of(content, results).values()) == {None}


def test_missing_iscrowd_and_area_are_taken_as_none_and_as_that_of_the_box():
    figures = figures_of(content_of((1, 1, BOX)), [row(1, 1, BOX, 0.9)])
    assert figures["AP"] == pytest.approx(1.0)
    assert figures["AP_medium"] == pytest.approx(1.0)  # 40 x 40 pixels


def test_a_class_without_objects_does_not_pull_the_mean_down():
    figures = figures_of(content_of((1, 1, BOX)), [row(1, 1, BOX, 0.9), row(1, 2, BOX, 0.9)])
    assert figures["AP"] == pytest.approx(1.0)


def test_difficult_objects_are_neither_found_nor_missed():
    content = content_of((1, 1, BOX), (2, 1, BOX))
    content["annotations"][1]["difficult"] = 1
    found = [row(1, 1, BOX, 0.5), row(2, 1, BOX, 0.9)]
    assert figures_of(content, found)["AP"] == pytest.approx(1.0)
    assert figures_of(content, found[:1])["AP"] == pytest.approx(1.0)


def test_an_annotation_numbered_zero_is_an_object_like_any_other():
    """pycocotools takes the number 0 for "no match" and calls a right detection wrong."""
    content = content_of((1, 1, BOX))
    content["annotations"][0]["id"] = 0
    assert figures_of(content, [row(1, 1, BOX, 0.9)])["AP"] == pytest.approx(1.0)


def test_many_pairs_are_compared_in_portions_with_the_same_result(monkeypatch):
    content, results = generated(5)
    truth = import_truth(content)
    found = import_results(results, truth).detections
    whole = measure_coco(truth, found)
    monkeypatch.setattr("detscope.accuracy.matching._PAIRS_AT_ONCE", 3)
    np.testing.assert_array_equal(measure_coco(truth, found).precision, whole.precision)


def test_empty_lists_of_masks_and_keypoints_are_measured_too():
    content, _ = generated(2, masks=True, keypoints=True)
    truth = import_truth(content, masks=True, keypoints=True)
    nothing = no_detections(masks=True, keypoint_count=17)
    for kind in ("masks", "keypoints"):
        assert measure_coco(truth, nothing, kind).compute_figures()["AP"] == 0.0


@pytest.mark.parametrize("seed", range(6))
def test_a_curve_of_precision_and_recall_has_its_average_precision_as_mean(seed):
    content, results = generated(seed)
    truth = import_truth(content)
    ours = measure_coco(truth, import_results(results, truth).detections)
    for category in (None, *range(len(truth.category_ids))):
        figures = ours.compute_figures(category)
        for overlap, name in ((None, "AP"), (0.5, "AP50"), (0.75, "AP75")):
            curve = ours.precision_at_recalls(overlap, category)
            if figures[name] is None:
                assert curve is None
            else:
                assert curve is not None
                assert len(curve) == 101
                assert np.mean(curve) == pytest.approx(figures[name])
                assert curve == sorted(curve, reverse=True)
