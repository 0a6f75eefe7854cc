"""An inference on a terminal, an evaluation that did not end, and runs of which a part is missing."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from rich.console import Console

from detscope.analyze.drawing import ReportData
from detscope.analyze.summary import RunSummary
from detscope.report.files import report_html
from detscope.report.first_screen import make_first_screen
from detscope.report.render.screen import print_first_screen
from detscope.report.render.terminal import print_whole
from detscope.report.render.terminal_table import BAR_CELLS
from detscope.report.sections import make_sections
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter
from made_figures import made_figure

NAME = "[bold]x[/] \x1b[2J <img src=x onerror=alert(1)>.jpg"
SHARES = {"data": 0.1, "forward": 0.85, "other": 0.05}


def stage(name: str, ms: float, **more: Any) -> dict[str, Any]:
    row = {"name": name, "depth": name.count("."), "forward_ms": ms, "total_ms": ms, "share": ms / 20}
    return {**row, "p50": ms, "n": 200, "ci95": (ms * 0.9, ms * 1.1), "p95": ms * 1.5, **more}


def cost(stage: str, measure: str, unit: str, **more: Any) -> dict[str, Any]:
    return {"stage": stage, "measure": measure, "unit": unit, "n": 200, **more}


LATENCY = {"p50": 20.0, "ci95": (19.5, 20.5), "n": 200, "p95": 28.0, "p99_why": "needs 459"}
SAMPLE: dict[str, Any] = {
    "verb": "infer",
    "run": "runs/a-run",
    "rerun": "detscope infer --config runs/a-run/config.toml",
    "status": "ok",
    "level": "modules",
    "device": "cpu",
    "batch_size": 1,
    "precision": "fp32",
    "images": 200,
    "repeat": 1,
    "score": 0.7,
    "step_ms": LATENCY,
    "latency_ms": LATENCY,
    "first_image_ms": 95.0,
    "images_per_s": 50.0,
    "stability": {"verdict": "stable", "reason": "steps spread by 4 % around the median"},
    "phases": [{"name": name, "ms": 20 * share, "share": share} for name, share in SHARES.items()],
    "stages": [
        stage("decode", 2.0),
        stage("backbone", 12.0),
        stage("roi_heads", 5.0),
        stage("roi_heads.mask", 3.0),
        stage("other", 1.0, in_model_ms=0.5, in_loop_ms=0.5),
    ],
    "modules": [
        {
            "path": "backbone.body",
            "type": "ResNet",
            "calls": 1.0,
            "total_ms": 12.0,
            "self_forward_ms": 11.0,
            "self_backward_ms": 0.0,
        }
    ],
    "outliers": [
        {
            "step": 9,
            "ms": 60.0,
            "why": "forward took 40 ms more than usual",
            "file": NAME,
            "size": "640 x 480",
            "special": ("87 boxes (median 12)",),
        }
    ],
    "cost_against_content": [
        cost("decode", "pixels", "ms per megapixel", slope=5.0, r2=0.01),
        cost("roi_heads", "detections", "ms per 100 boxes", slope=3.2, ci95=(3.0, 3.4), r2=0.81),
        cost("roi_heads", "pixels", "ms per megapixel", why="no variation: always 81,920 pixels"),
    ],
    "pass_memory": {
        "peak_bytes": 2_400_000,
        "peak_at": {"module": "transform"},
        "largest": [
            {"bytes": 983_000, "operator": "aten::sub", "module": "transform", "stage": "preprocess"}
        ],
    },
    "detections": {"per_image": 12.5, "above_score_per_image": 3.0},
    "overhead_ratio": {"value": 1.012, "ci95": (1.001, 1.024), "n": 66},
    "skipped": [{"file": NAME, "reason": "is empty (0 bytes)"}],
    "verdict": "backbone takes 60 % of the 20.0 ms per image",
    "files": [
        {"name": "trace", "path": "runs/x/trace.json.gz"},
        {"name": "pictures", "path": "runs/x/pictures"},
        {"name": "tensorboard", "path": "runs/x/tb"},
    ],
}
INFO = {
    "model": {"name": "tiny_maskrcnn", "family": "maskrcnn", "parameters": 1_700_000},
    "weights": {"kind": "random"},
    "data": {"name": "files", "images": 200, "classes": None},
}
Make = Callable[..., ReportData]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """The sample as the report reads it, of a run that knows what was in its images."""
    writer = RunWriter(tmp_path_factory.mktemp("runs"), "infer", "tiny_maskrcnn", INFO)
    writer.append_rows(
        "steps", [(step, 0, "recorded", "step", step * 10**8, 20_000_000, None) for step in range(4)]
    )
    writer.append_rows(
        "content", [(step, 1, 5, 100, 100, 0, None, step, None, 0, False, "") for step in range(4)]
    )
    writer.close_run("ok")
    run = load_run(writer.folder)

    def made(changes: dict[str, Any] | None = None, **more: Any) -> ReportData:
        return ReportData(run, made_figure(RunSummary, {**SAMPLE, **(changes or {})}), **more)

    return made


def shown(data: ReportData, width: int = 100, **console: Any) -> str:
    stream = io.StringIO()
    print_whole(make_sections(data)[0], Console(file=stream, width=width, highlight=False, **console))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100])
def test_an_inference_fits_the_terminal_and_shows_every_part(make: Make, width: int) -> None:
    text = shown(make(), width)
    assert max(map(len, text.splitlines())) <= width
    text = " ".join(text.split())  # long lines are folded
    for words in (
        "tiny_maskrcnn (maskrcnn, 1.7 M parameters)",
        "median 20.0 ms, 95 % interval [19.5, 20.5], 200 passes",
        "p95 28.0 ms, p99 needs 459",
        "50.0 images/s",
        "200 measured, once each",
        "95.0 ms",
        "Stages and their parts",
        "decode",
        "0.50 ms in the model, 0.50 ms in the loop",
        "The most expensive modules",
        "Stages against what was in the images",
        "0.81",
        "peak 2.40 MB in a pass, reached in transform",
        "aten::sub",
        "12.5 detections per image, 3.00 of them above 0.70",
        "is empty (0 bytes)",
        "1.012 x a step without a recorder",
        "runs/x/pictures",
        "runs/x/tb",
        "runs/x/trace.json.gz (open in ui.perfetto.dev)",
        "random weights",
    ):
        assert words in text, words


def test_a_line_that_explains_nothing_comes_after_those_that_do(make: Make) -> None:
    text = shown(make(), width=200)
    assert text.index("ms per 100 boxes") < text.index("ms per megapixel")
    assert "ms per megapixel" in report_html(make())


def test_names_of_files_stay_text_and_cannot_steer_the_terminal(make: Make) -> None:
    text = shown(make(), width=250)
    assert "\x1b" not in text
    assert text.count("[bold]x[/] \\x1b[2J <img src=x onerror=alert(1)>.jpg") == 2
    assert "87 boxes (median 12)" in text


def test_the_next_command_repeats_an_inference_as_an_inference(make: Make) -> None:
    assert "detscope infer --config runs/a-run/config.toml --level ops" in shown(make(), width=120)
    assert "detscope report runs/a-run --open" in shown(make(just_ended=True))


def test_bars_of_the_phases_fill_the_step_without_a_gap_where_there_are_only_plain_letters(
    make: Make,
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    print_whole(make_sections(make({"verb": "train"}))[0], Console(file=stream, width=100))
    stream.flush()
    lines = stream.buffer.getvalue().decode().splitlines()  # type: ignore[attr-defined]
    first = next(index for index, line in enumerate(lines) if line.startswith("Phases of a step")) + 2
    found = [re.match(" *#*", line[line.find("%") + 1 :]) for line in lines[first : first + len(SHARES)]]
    bars = [match.group().rstrip() for match in found if match]
    assert "".join(bar.strip() for bar in bars) == "#" * BAR_CELLS
    begins, ends = [bar.find("#") for bar in bars], [len(bar) for bar in bars]
    assert begins[1:] == ends[:-1]


def test_an_evaluation_that_did_not_end_is_shown_without_a_crash(make: Make) -> None:
    data = make({"verb": "eval", "accuracy": None, "status": "failed", "reason": "no space", "step_ms": {}})
    text = shown(data)
    assert "failed: no space" in text
    assert "undefined" not in text


@pytest.mark.parametrize("key", [key for key in SAMPLE if key not in ("verb", "run", "cost_against_content")])
@pytest.mark.parametrize("verb", ["infer", "train"])
def test_every_part_may_be_missing(make: Make, verb: str, key: str) -> None:
    plainest = made_figure(RunSummary, {"verb": verb})
    data = make({"verb": verb})
    data = ReportData(data.run, msgspec.structs.replace(data.summary, **{key: getattr(plainest, key)}))
    assert "tiny_maskrcnn" in shown(data)
    stream = io.StringIO()
    print_first_screen(make_first_screen(data, make_sections(data)[0]), Console(file=stream, width=80))
    assert "tiny_maskrcnn" in stream.getvalue()
    assert "<html" in report_html(data)


def test_a_run_without_any_figure_says_what_is_not_known(make: Make) -> None:
    data = make()
    text = shown(ReportData(data.run, made_figure(RunSummary, {"verb": "train", "run": "runs/a-run"})))
    assert "cannot tell" in text.lower()
    assert "Phases of a step" not in text
