from __future__ import annotations

import numpy as np
import pytest

from detscope.analyze.curve import Curve, Series
from detscope.report.curve import LEFT, RIGHT, TITLE, WIDTH, draw_curve
from detscope.report.terminal_course import epochs_table


def curve(losses: list[float], accuracy: list[Series] | None = None, rate: float = 0.02) -> Curve:
    steps = list(range(len(losses)))
    loss = Series("loss", steps, losses)
    return Curve(8, loss, loss, [], Series("learning_rate", steps, [rate] * len(steps)), accuracy or [])


def blue(pixels: np.ndarray) -> np.ndarray:
    """Where the bold line of the loss is."""
    red, green, blue_ = (pixels[..., channel].astype(int) for channel in range(3))
    return (red < 60) & (abs(green - 90) < 40) & (abs(blue_ - 160) < 40)


def test_a_falling_loss_is_drawn_falling():
    pixels = np.asarray(draw_curve(curve([4.0 - 0.1 * step for step in range(32)]), "a model"))
    panel = blue(pixels)[TITLE + 34 : TITLE + 400, LEFT : WIDTH - RIGHT]
    columns = np.flatnonzero(panel.any(axis=0))
    heights = [np.flatnonzero(panel[:, column]).mean() for column in columns]
    assert len(columns) > 700
    assert heights[0] < 10, "the first loss is the top of the axis"
    assert heights[-1] > 250
    assert np.all(np.diff(heights) > -3)


def test_accuracy_gets_a_panel_of_its_own():
    points = [Series("box AP50", [8, 16], [0.2, 0.9])]
    plain = draw_curve(curve([1.0] * 16), "a model")
    evaluated = draw_curve(curve([1.0] * 16, points), "a model")
    assert evaluated.size[1] == plain.size[1] + 270


@pytest.mark.parametrize(
    "losses", [[1.0], [0.0, 0.0], [1e-9, 2e-9], [1e6] * 3 + [1.0] * 100, [1.0, float("nan"), 2.0]]
)
def test_any_losses_make_a_picture(losses):
    assert draw_curve(curve(losses, rate=1e-7), "<img src=x>").size[0] == WIDTH


def test_the_table_says_undefined_where_accuracy_is_and_nothing_where_it_was_not_measured():
    epochs = [
        {"epoch": 1, "loss": 2.0, "learning_rate": 0.01},
        {"epoch": 2, "loss": 1.0, "learning_rate": 0.02, "accuracy": {"coco_box": {"AP": None, "AP50": 0.5}}},
    ]
    table = epochs_table({"epochs": epochs})
    cells = [list(column.cells) for column in table.columns]
    assert cells[3] == ["", "undefined"]
    assert cells[4] == ["", "0.500"]
    assert epochs_table({}) is None
