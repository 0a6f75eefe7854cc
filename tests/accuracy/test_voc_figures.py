"""VOC average precision against arithmetic done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from detscope.accuracy.records import Detections, GroundTruth
from detscope.accuracy.voc import measure_voc

SIDE = 10.0


def truth_of(*objects: tuple[int, float, bool], classes: int = 1, category: int = 0) -> GroundTruth:
    """Squares of ten pixels: (image, x, difficult)."""
    return GroundTruth(
        (1, 2, 3),
        tuple(range(1, classes + 1)),
        tuple(f"class {number}" for number in range(1, classes + 1)),
        np.array([image for image, _, _ in objects], dtype=np.int64),
        np.full(len(objects), category, dtype=np.int64),
        np.array([[x, 0.0, SIDE, SIDE] for _, x, _ in objects]).reshape(-1, 4),
        np.full(len(objects), SIDE * SIDE),
        np.zeros(len(objects), dtype=np.bool_),
        np.array([difficult for _, _, difficult in objects], dtype=np.bool_),
    )


def found_of(*rows: tuple[int, float, float]) -> Detections:
    """Squares of ten pixels: (image, x, score)."""
    return Detections(
        np.array([image for image, _, _ in rows], dtype=np.int64),
        np.zeros(len(rows), dtype=np.int64),
        np.array([[x, 0.0, SIDE, SIDE] for _, x, _ in rows]).reshape(-1, 4),
        np.array([score for _, _, score in rows]),
    )


def both(truth: GroundTruth, found: Detections) -> tuple[float | None, float | None]:
    result = measure_voc(truth, found)
    return result.eleven_point[0], result.area[0]


def test_a_miss_and_a_wrong_detection():
    """Objects: A, B (image 0), C (image 1). Detections, best first: A right, one wrong, C right; B missed.

    precision after each hit: 1/1, 2/3; recall: 1/3, 2/3.
    11 points: recalls 0, .1, .2, .3 are reached by 1/3 with best precision 1 (4 points), .4, .5, .6 by 2/3
    with 2/3 (3 points), .7 to 1 by nothing: (4 * 1 + 3 * 2/3) / 11 = 6/11.
    Area: 1/3 * 1 + 1/3 * 2/3 = 5/9.
    """
    truth = truth_of((0, 0, False), (0, 50, False), (1, 0, False))
    found = found_of((0, 0, 0.9), (2, 0, 0.8), (1, 0, 0.7))
    assert both(truth, found) == pytest.approx((6 / 11, 5 / 9))


def test_a_duplicate_is_wrong_even_when_another_object_is_free():
    """Two objects 4 pixels apart, A at 0 and B at 4; both detections lie at 1.

    Each overlaps A most (9 of 11; B: 7 of 13 = 0.54, which would do). VOC gives both to A: the first
    is right, the second a duplicate. precision after the only hit: 1; recall 1/2.
    11 points: 0 to .5 with 1 (6 points): 6/11. Area: 1/2.
    """
    truth = truth_of((0, 0, False), (0, 4, False))
    assert both(truth, found_of((0, 1, 0.9), (0, 1, 0.8))) == pytest.approx((6 / 11, 1 / 2))


def test_a_duplicate_before_a_hit_lowers_its_precision():
    """Objects A (image 0) and B (image 1). Detections: A, A again, B.

    precision after hits: 1, 2/3; recall 1/2, 1.
    11 points: 6 of 1 (0 to .5), 5 of 2/3: (6 + 10/3) / 11 = 28/33.
    Area: 1/2 * 1 + 1/2 * 2/3 = 5/6.
    """
    truth = truth_of((0, 0, False), (1, 0, False))
    assert both(truth, found_of((0, 0, 0.9), (0, 1, 0.8), (1, 0, 0.7))) == pytest.approx((28 / 33, 5 / 6))


def test_difficult_objects_count_neither_when_found_nor_when_missed():
    """Objects: A, difficult D (image 0), difficult E (image 1). Detections: D twice, then A. E is missed.

    One object counts. Both detections of D are left out of everything: precision 1 at recall 1. Both are 1.
    """
    truth = truth_of((0, 0, False), (0, 50, True), (1, 0, True))
    assert both(truth, found_of((0, 50, 0.9), (0, 50, 0.8), (0, 0, 0.7))) == pytest.approx((1.0, 1.0))


def test_equal_scores_count_in_the_order_they_were_given():
    """One object, two detections of score 0.5: right then wrong has precision 1, wrong then right 1/2."""
    truth = truth_of((0, 0, False))
    right, wrong = (0, 0.0, 0.5), (1, 0.0, 0.5)
    assert both(truth, found_of(right, wrong)) == pytest.approx((1.0, 1.0))
    assert both(truth, found_of(wrong, right)) == pytest.approx((0.5, 0.5))


def test_later_precision_lifts_the_curve():
    """Objects A, B (images 0, 1). Detections: wrong, A, B. precision after hits: 1/2, 2/3; recall 1/2, 1.

    The best precision at or beyond every recall is 2/3: 11 points give 2/3; area 1/2 * 2/3 + 1/2 * 2/3 = 2/3.
    """
    truth = truth_of((0, 0, False), (1, 0, False))
    assert both(truth, found_of((2, 0, 0.9), (0, 0, 0.8), (1, 0, 0.7))) == pytest.approx((2 / 3, 2 / 3))


def test_recall_of_three_tenths_reaches_the_point_of_three_tenths():
    """Ten objects, three found: recall 0.3 exactly, which 3 * 0.1 = 0.30000000000000004 would not reach.

    11 points: 0, .1, .2, .3 with precision 1: 4/11. Area: 3/10.
    """
    truth = truth_of(*((0, 20.0 * number, False) for number in range(10)))
    found = found_of(*((0, 20.0 * number, 0.9) for number in range(3)))
    assert both(truth, found) == pytest.approx((4 / 11, 0.3))


def test_an_overlap_of_exactly_one_half_is_enough():
    """Half of a square of 10 pixels: 50 of 100. Moved by 3.4 pixels: 66 of 134 = 0.49."""
    truth = truth_of((0, 0, False))
    halfway = Detections(
        np.zeros(1, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
        np.array([[0.0, 0.0, 10.0, 5.0]]),
        np.array([0.9]),
    )
    assert both(truth, halfway) == pytest.approx((1.0, 1.0))
    assert both(truth, found_of((0, 3.4, 0.9))) == pytest.approx((0.0, 0.0))


def test_a_class_without_objects_is_undefined_and_left_out_of_the_mean():
    truth = truth_of((0, 0, False), classes=2)
    result = measure_voc(truth, found_of((0, 0, 0.9)))
    assert result.eleven_point == (1.0, None)
    assert (result.compute_mean("eleven_point"), result.compute_mean("area")) == (1.0, 1.0)


def test_only_difficult_objects_are_undefined_and_no_detections_are_zero():
    assert both(truth_of((0, 0, True)), found_of((0, 0, 0.9))) == (None, None)
    assert measure_voc(truth_of((0, 0, True)), found_of()).compute_mean("area") is None
    assert both(truth_of((0, 0, False)), found_of()) == (0.0, 0.0)
