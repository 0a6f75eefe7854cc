"""The curve of a training and its epochs: as drawn and as told."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from detscope.analyze.drawing import report_data
from detscope.report.colours import PALETTE
from detscope.report.model import Chart, Section, Table
from detscope.report.publish import publish_page
from detscope.report.render.picture import chart_png
from detscope.report.sections.accuracy import section
from detscope.runs.reader import Run, load_run
from detscope.runs.writer import RunWriter

STEPS_PER_EPOCH = 8
Row = tuple[int, int, str, str, str | None, float | None]


def make_run(folder: Path, losses: list[float], accuracy: list[Row] | None = None, rate: float = 0.02) -> Run:
    info = {"steps_per_epoch": STEPS_PER_EPOCH, "model": {"name": "<img src=x>$x^2$\x1b[2J"}}
    writer = RunWriter(folder, "train", "a-model", info)
    writer.append_rows("losses", [(step, "loss", loss) for step, loss in enumerate(losses)])
    writer.append_rows("losses", [(step, "learning_rate", rate) for step in range(len(losses))])
    writer.append_rows("accuracy", list(accuracy or ()))
    writer.close_run("ok")
    return load_run(writer.folder)


def evaluated(epoch: int, ap: float | None, ap50: float | None) -> list[Row]:
    step = STEPS_PER_EPOCH * epoch
    return [(epoch, step, "coco_box", name, None, value) for name, value in (("AP", ap), ("AP50", ap50))]


def block(run: Run, name: str) -> Chart | Table:
    found = section(report_data(run))
    assert isinstance(found, Section)
    return next(one for one in found.blocks if isinstance(one, Chart | Table) and one.id == name)


def test_a_falling_loss_is_drawn_falling(tmp_path: Path) -> None:
    chart = block(make_run(tmp_path, [4.0 - 0.1 * step for step in range(32)]), "curve")
    assert isinstance(chart, Chart) and chart.file == "curve"
    with Image.open(io.BytesIO(chart_png(chart))) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    colour = np.array([int(PALETTE[0][at : at + 2], 16) for at in (1, 3, 5)])
    line = np.abs(pixels - colour).sum(axis=2) < 60
    columns = np.flatnonzero(line.any(axis=0))
    heights = [np.flatnonzero(line[:, column]).mean() for column in columns]
    assert len(columns) > 700
    assert heights[-1] - heights[0] > 200, "rows count from the top"
    assert np.all(np.diff(heights) > -3)


def test_accuracy_gets_an_axis_of_its_own(tmp_path: Path) -> None:
    plain = block(make_run(tmp_path / "plain", [1.0] * 16), "curve")
    both = block(
        make_run(tmp_path / "both", [1.0] * 16, [*evaluated(1, 0.1, 0.2), *evaluated(2, 0.5, 0.9)]), "curve"
    )
    assert isinstance(plain, Chart) and isinstance(both, Chart)
    assert plain.right is None and not any(line.on_right for line in plain.content)  # type: ignore[union-attr]
    assert both.right is not None and both.right.title == "AP"
    drawn = {line.name: (line.x, line.y) for line in both.content if line.on_right}  # type: ignore[union-attr]
    assert drawn == {"box AP": ([8, 16], [0.1, 0.5]), "box AP50": ([8, 16], [0.2, 0.9])}


@pytest.mark.parametrize(
    "losses", [[1.0], [0.0, 0.0], [1e-9, 2e-9], [1e6] * 3 + [1.0] * 100, [1.0, float("nan"), 2.0]]
)
def test_any_losses_make_a_page_and_a_picture(tmp_path: Path, losses: list[float]) -> None:
    run = make_run(tmp_path, losses, evaluated(1, None, 0.5), rate=1e-7)
    publish_page(run.folder)
    assert (run.folder / "report.html").stat().st_size > 1000
    if len(losses) > 1:
        with Image.open(run.folder / "pictures" / "curve.png") as picture:
            assert picture.size == (1600, 600)


def test_the_table_says_undefined_where_accuracy_is_and_nothing_where_it_was_not_measured(
    tmp_path: Path,
) -> None:
    table = block(make_run(tmp_path, [2.0] * 8 + [1.0] * 8, evaluated(2, None, 0.5)), "epochs")
    assert isinstance(table, Table)
    assert [column.title for column in table.columns] == [
        *("epoch", "steps", "loss", "learning rate", "AP", "AP50")
    ]
    assert table.rows == [[2, 16, 1.0, "0.02", "undefined", "0.500"], [1, 8, 2.0, "0.02", "", ""]]
    found = section(report_data(make_run(tmp_path / "short", [2.0] * 4)))
    assert isinstance(found, Section)
    assert not [one for one in found.blocks if isinstance(one, Table) and one.id == "epochs"]
