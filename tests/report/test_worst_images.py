"""Ground truth beside predictions, drawn: what is right, wrong and missed can be told by colour."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from detscope.report.worst_images import (
    ASIDE,
    BAD,
    GOOD,
    Comparison,
    MarkedBox,
    draw_comparison,
    save_comparisons,
)


def grey(height: int = 120, width: int = 160) -> np.ndarray:
    return np.full((height, width, 3), 128, dtype=np.uint8)


def comparison(name: str = "a.jpg", pixels: np.ndarray | None = None, **more) -> Comparison:
    pixels = grey() if pixels is None else pixels
    truth = [MarkedBox((10, 20, 30, 40), "cat", GOOD), MarkedBox((90, 60, 40, 40), "dog", BAD)]
    predictions = [MarkedBox((12, 20, 30, 40), "cat", GOOD, 0.9)]
    given = {"truth": truth, "predictions": predictions, **more}
    return Comparison(name, pixels, given["truth"], given["predictions"], "2 to find, 1 missed", "1 right")


def count(pixels: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((pixels == np.array(colour)).all(axis=2).sum())


def test_the_missed_object_is_marked_on_the_left_and_nothing_on_the_right():
    drawn = draw_comparison(comparison())
    left, right = drawn[:, : drawn.shape[1] // 2], drawn[:, drawn.shape[1] // 2 :]
    assert count(left, BAD) > 100
    assert count(right, BAD) == 0
    assert count(left, GOOD) > 100
    assert count(right, GOOD) > 100


def test_small_images_are_enlarged_and_large_ones_reduced():
    assert draw_comparison(comparison(pixels=grey(60, 80))).shape[1] > 900
    assert draw_comparison(comparison(pixels=grey(2000, 4000))).shape[1] < 2000


def test_masks_tint_the_pixels_they_cover():
    mask = np.zeros((120, 160), dtype=np.bool_)
    mask[50:70, 50:70] = True
    with_mask = [MarkedBox((50, 50, 20, 20), "cat", ASIDE, 0.5, mask)]
    plain = [MarkedBox((50, 50, 20, 20), "cat", ASIDE, 0.5)]
    drawn = [draw_comparison(comparison(predictions=given)) for given in (with_mask, plain)]
    assert (drawn[0] != drawn[1]).any()


@pytest.mark.parametrize("box", [(-50, -50, 20, 20), (150, 110, 500, 500), (10, 10, 0, 0), (0, 0, 160, 120)])
def test_boxes_outside_or_without_size_are_drawn_without_a_crash(box):
    draw_comparison(comparison(predictions=[MarkedBox(box, "cat", BAD, 0.5)]))


def test_files_are_numbered_from_the_worst_on_and_named_without_harm(tmp_path):
    names = ["../../etc/x.jpg", "<img src=x onerror=alert(1)>.png", "b.jpg"]
    paths = save_comparisons(tmp_path / "worst", [comparison(name) for name in names])
    assert [path.name[:2] for path in paths] == ["01", "02", "03"]
    assert all(path.parent == tmp_path / "worst" and "<" not in path.name for path in paths)
    with Image.open(paths[0]) as picture:
        assert picture.size[0] > 900
