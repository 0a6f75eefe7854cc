"""`infer` over batch sizes, threads and precisions: one table, picture, page and CSV."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from detscope.analyze.scan import InferenceScan, ScanRow, make_scan
from detscope.analyze.summary import summarize
from detscope.cli.main import app
from detscope.errors import InterruptedRun
from detscope.report.model import Chart
from detscope.report.verbs.scan import scan_csv, scan_sections
from detscope.sessions.infer import inference

ROW = {"threads": None, "precision": "fp32"}


def scan_of(*rows: ScanRow) -> InferenceScan:
    return make_scan("tiny_ssd", "cpu", 8, list(rows))


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> tuple[InferenceScan, Path]:
    runs = tmp_path_factory.mktemp("runs")
    flags = ["--limit", "8", "--level", "phases", "--out", str(runs), "--json"]
    lists = ["--batch-sizes", "1,4", "--threads", "1", "--precision", "fp32,bf16"]
    done = CliRunner().invoke(app, ["infer", "tiny_ssd", *flags, *lists])
    assert done.exit_code == 0, done.stderr
    import msgspec

    return msgspec.convert(json.loads(done.stdout), InferenceScan), runs


def test_every_combination_is_a_run_with_the_same_figures_as_its_row(scanned) -> None:
    scan, _ = scanned
    settings = [(row.precision, row.threads, row.batch_size) for row in scan.rows]
    assert settings == [("fp32", 1, 1), ("fp32", 1, 4), ("bf16", 1, 1), ("bf16", 1, 4)]
    for row in scan.rows:
        assert row.run is not None
        found = summarize(row.run)
        assert (found.batch_size, found.precision) == (row.batch_size, row.precision)
        assert (found.step_ms.p50, found.images_per_s) == (row.latency_ms, row.images_per_s)
        assert row.image_ms == pytest.approx((row.latency_ms or 0.0) / row.batch_size)


def test_table_picture_and_page_lie_in_a_folder_of_their_own(scanned) -> None:
    scan, runs = scanned
    (folder,) = runs.glob("*-scan-tiny_ssd")
    rows = list(csv.DictReader((folder / "scan.csv").read_text().splitlines()))
    assert [float(row["images_per_s"]) for row in rows] == [row.images_per_s for row in scan.rows]
    assert (folder / "scan.png").read_bytes()[:4] == b"\x89PNG"
    assert "scan-table" in (folder / "scan.html").read_text()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--batch-sizes", "1,x"], "x"),
        (["--batch-sizes", "1,,2"], "empty place"),
        (["--precision", "fp32,fp7"], "fp7"),
        (["--threads", "1,0"], "threads"),
        (["--batch-sizes", "1,2", "--batch-size", "3"], "exclude each other"),
        (["--batch-sizes", "1,2", "--window", "1:2"], "--window belongs to --nsight"),
    ],
)
def test_a_list_with_something_wrong_is_refused_before_anything_is_measured(flags, words, tmp_path) -> None:
    done = CliRunner().invoke(app, ["infer", "tiny_ssd", *flags, "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert words in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_fastest_and_the_shortest_are_told_apart() -> None:
    scan = scan_of(
        ScanRow(batch_size=1, latency_ms=10.0, images_per_s=100.0, run="a", stability="stable", **ROW),
        ScanRow(batch_size=8, latency_ms=40.0, images_per_s=200.0, run="b", stability="unstable", **ROW),
    )
    assert (scan.fastest, scan.quickest) == (1, 0)
    (section,) = scan_sections(scan)
    assert section.title == "Fastest: batch 8, fp32 with 200.0 images/s"
    chart = next(block for block in section.blocks if isinstance(block, Chart))
    assert chart.content[0].x == [1, 8]  # type: ignore[index, union-attr]


def test_a_combination_that_failed_keeps_its_row_and_says_why() -> None:
    scan = scan_of(
        ScanRow(batch_size=1, latency_ms=10.0, images_per_s=100.0, run="a", stability="stable", **ROW),
        ScanRow(batch_size=64, why="not enough memory", **ROW),
    )
    (section,) = scan_sections(scan)
    assert any(
        "failed: not enough memory" in row for block in section.blocks for row in getattr(block, "rows", ())
    )
    assert scan_csv(scan).splitlines()[2].endswith("not enough memory")


def test_a_scan_that_is_stopped_keeps_the_rows_that_were_measured(tmp_path, monkeypatch) -> None:
    real, calls = inference.run_inference, []

    def stopped_at_the_second(*args, **more):
        calls.append(1)
        if len(calls) == 2:
            raise InterruptedRun("interrupted", "")
        return real(*args, **more)

    monkeypatch.setattr(inference, "run_inference", stopped_at_the_second)
    flags = ["--limit", "2", "--level", "phases", "--out", str(tmp_path), "--batch-sizes", "1,2"]
    done = CliRunner().invoke(app, ["infer", "tiny_ssd", *flags])
    assert done.exit_code == 130
    (kept,) = tmp_path.glob("*-scan-*/scan.csv")
    assert [row["batch_size"] for row in csv.DictReader(kept.read_text().splitlines())] == ["1"]
