"""Predicted beside measured, in the report of a run and in the terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from detscope.analyze.drawing import report_data
from detscope.analyze.prediction import FILE_NAME, VERSION, compare_categories, compare_figure
from detscope.report.files import write_report
from detscope.report.render.terminal import print_whole
from detscope.report.sections import make_sections
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter

EVIL = "<script>alert(1)</script>"


def make_run(folder: Path, **more: Any) -> Path:
    """A run of eight steps of 100 ms, predicted to take 110."""
    writer = RunWriter(
        folder, "train", "small", {"device": "cpu", "batch_size": 2, "model": {"name": "small"}}
    )
    rows = [
        (step, 0, "recorded", phase, step * 10**8, 10**8, None)
        for step in range(8)
        for phase in ("step", "forward")
    ]
    writer.append_rows("steps", rows)
    writer.close_run("ok")
    found = {
        "version": VERSION,
        "network": "small",
        "rows": [{"batch": 2, "assumed": ["square images"], "extrapolated": True}],
        "notes": [],
        "cannot_tell": [],
        "device_model": {"rows": 944, "networks": ["resnet18"]},
        "compared": [
            compare_figure("step without waiting for data", "ms", 110.0, 100.0, interval=(90.0, 120.0)),
            compare_figure("peak of allocated memory", "bytes", 3e7, 4e7, interval=(3.5e7, 3.9e7)),
        ],
        "categories": compare_categories({"activations": 2e7}, {"activations": 3e7}),
        **more,
    }
    (writer.folder / FILE_NAME).write_bytes(msgspec.json.encode(found))
    return writer.folder


def shown(folder: Path) -> str:
    console = Console(width=160, file=io.StringIO())
    print_whole(make_sections(report_data(load_run(folder)))[0], console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_report_and_the_terminal_tell_error_and_interval(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    page = write_report(run).read_text(encoding="utf-8")
    assert "Step without waiting for data predicted 10.0 % too high, inside the interval" in page
    assert "peak of allocated memory predicted 25.0 % too low, outside the interval" in page
    assert "+10.0 %" in page and 'id="predicted-bars"' in page
    assert "assumed: square images" in page
    text = shown(run)
    assert "predicted 110.0 [90.0, 120.0] ms, measured 100.0 ms: +10.0 %, inside the 90 % interval" in text
    assert "OUTSIDE the 90 % interval" in text


def test_the_figures_come_as_markdown_and_csv_too(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert "| activations |" in write_report(run, "md").read_text().replace("`", "")
    assert "predicted,predicted-categories,activations,error,-0.333" in write_report(run, "csv").read_text()


def test_a_run_that_nobody_predicted_says_how_to(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / FILE_NAME).unlink()
    assert f"detscope predict {run.name}" in write_report(run).read_text(encoding="utf-8")


def test_words_in_the_file_are_inert(tmp_path: Path) -> None:
    run = make_run(tmp_path, notes=[EVIL], network=EVIL)
    page = write_report(run).read_text(encoding="utf-8")
    assert EVIL not in page and "&lt;script&gt;alert(1)" in page
