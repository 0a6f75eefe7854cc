from __future__ import annotations

import pytest

from detscope.analyze.accuracy import BestEvaluation, ClassAccuracy, training_accuracy
from detscope.analyze.curve import LossPart, epoch_figures, training_curve
from detscope.runs.reader import Run, load_run
from detscope.runs.writer import RunWriter


@pytest.fixture
def make_run(tmp_path):
    def make(losses=(), accuracy=(), **info) -> Run:
        writer = RunWriter(tmp_path, "train", "model", {"steps_per_epoch": 4, **info})
        writer.append_rows("losses", list(losses))
        writer.append_rows("accuracy", list(accuracy))
        writer.close_run("ok")
        return load_run(writer.folder)

    return make


LOSSES = [
    row
    for step in range(8)
    for row in ((step, "loss", 8.0 - step), (step, "part", 1.0), (step, "learning_rate", 0.1 * step))
]


def evaluation(epoch: int, box: float | None, mask: float | None) -> list:
    rows = [
        (epoch, 4 * epoch, "coco_box", "AP", None, box),
        (epoch, 4 * epoch, "coco_box", "AP50", None, box),
    ]
    rows += [(epoch, 4 * epoch, "coco_mask", "AP", None, mask)]
    rows += [(epoch, 4 * epoch, "voc07", "AP", None, 0.99), (epoch, 4 * epoch, "coco_box", "AP", "cat", 0.3)]
    return rows


def test_an_epoch_has_the_mean_of_its_losses_and_the_last_learning_rate(make_run):
    first, second = epoch_figures(make_run(LOSSES))
    assert first.loss == pytest.approx((8 + 7 + 6 + 5) / 4)
    assert second.parts == (LossPart(name="part", value=1.0),)
    assert second.learning_rate == pytest.approx(0.7)
    assert (first.step, second.step) == (4, 8)


def test_accuracy_stands_at_the_epoch_it_was_measured_after(make_run):
    first, second = epoch_figures(make_run(LOSSES, evaluation(2, 0.5, 0.4)))
    assert first.accuracy is None
    assert second.accuracy.coco_mask.ap == 0.4


def test_the_last_evaluation_is_told_and_the_best_one_by_masks_where_there_are_masks(make_run):
    rows = evaluation(1, 0.7, 0.6) + evaluation(2, 0.8, 0.5)
    figures = training_accuracy(make_run(LOSSES, rows))
    assert (figures.epoch, figures.ap50) == (2, 0.8)
    assert figures.best == BestEvaluation(kind="coco_mask", figure="AP", value=0.6, epoch=1, step=4)
    assert figures.classes == (ClassAccuracy(kind="coco_box", class_name="cat", ap=0.3),)


def test_undefined_accuracy_stays_undefined_and_is_never_the_best(make_run):
    figures = training_accuracy(make_run(LOSSES, evaluation(1, None, None)))
    assert figures.ap is None
    assert figures.best is None


def test_without_evaluation_there_is_no_accuracy_and_without_losses_no_curve(make_run):
    run = make_run()
    assert training_accuracy(run) is None
    assert training_curve(run) is None
    assert epoch_figures(run) == []


def test_the_curve_has_smoothed_lines_and_keeps_the_rate_out_of_the_losses(make_run):
    long = [(step, name, float(step % 2)) for step in range(100) for name in ("loss", "learning_rate")]
    curve = training_curve(make_run(long, evaluation(1, 0.5, None)))
    assert curve.parts == []
    assert curve.smoothed.values[-1] == pytest.approx(1 / 2, abs=0.2)
    assert len(curve.loss.values) == 100
    assert [line.name for line in curve.accuracy] == ["box AP", "box AP50"], "undefined masks are left out"
