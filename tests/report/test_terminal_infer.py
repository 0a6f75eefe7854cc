"""An inference run on a terminal."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
from rich.console import Console

from detscope.report.terminal import render

NAME = "[bold]x[/] \x1b[2J <img src=x onerror=alert(1)>.jpg"


def stage(name: str, ms: float, **more: Any) -> dict[str, Any]:
    row = {"name": name, "depth": name.count("."), "ms": ms, "share": ms / 20, "p50": ms, "n": 200}
    return {**row, "ci95": [ms * 0.9, ms * 1.1], "p95": ms * 1.5, **more}


SAMPLE: dict[str, Any] = {
    "verb": "infer",
    "rerun": "detscope infer --config runs/20261115T203100Z-infer-tiny_maskrcnn-1a2b/config.toml",
    "run": "runs/20261115T203100Z-infer-tiny_maskrcnn-1a2b",
    "status": "ok",
    "level": "modules",
    "model": {"name": "tiny_maskrcnn", "family": "maskrcnn", "parameters": 1_700_000},
    "weights": {"kind": "random"},
    "data": {"name": "files", "images": 200, "classes": None},
    "device": "cpu",
    "batch_size": 1,
    "precision": "fp32",
    "images": 200,
    "repeat": 1,
    "score": 0.7,
    "latency_ms": {"p50": 20.0, "ci95": [19.5, 20.5], "n": 200, "p95": 28.0, "p99": "n/a (needs 459)"},
    "first_image_ms": 95.0,
    "images_per_s": 50.0,
    "stability": {"verdict": "stable", "reason": "steps spread by 4 % around the median"},
    "stages_ms": {"decode": 2.0, "backbone": 12.0, "roi_heads": 5.0, "other": 1.0},
    "stages": [
        stage("decode", 2.0),
        stage("backbone", 12.0),
        stage("roi_heads", 5.0),
        stage("roi_heads.mask", 3.0),
        stage("other", 1.0, of_which_ms={"in the model": 0.5, "in the loop": 0.5}),
    ],
    "modules": [
        {
            "path": "backbone.body",
            "type": "ResNet",
            "calls": 1.0,
            "total_ms": 12.0,
            "self_forward_ms": 11.0,
            "share": 0.6,
        }
    ],
    "outliers": [
        {
            "step": 9,
            "ms": 60.0,
            "why": "forward took 40 ms more than usual",
            "file": NAME,
            "size": "640 x 480",
            "special": ["87 boxes (median 12)"],
        }
    ],
    "cost_against_content": {
        "roi_heads": {
            "detections": {
                "slope": 3.2,
                "ci95": [3.0, 3.4],
                "r2": 0.81,
                "n": 200,
                "unit": "ms per 100 boxes",
            },
            "pixels": {"slope": None, "r2": None, "n": 200, "why": "no variation: always 81,920 pixels"},
        },
        "decode": {"pixels": {"slope": 5.0, "r2": 0.01, "n": 200, "unit": "ms per megapixel"}},
    },
    "memory": {
        "peak_bytes": 2_400_000,
        "peak_at": {"module": "transform"},
        "largest": [
            {"bytes": 983_000, "operator": "aten::sub", "module": "transform", "stage": "preprocess"}
        ],
    },
    "detections": {"per_image": 12.5, "above_score_per_image": 3.0},
    "overhead_ratio": {"value": 1.012, "ci95": [1.001, 1.024], "n": 66},
    "skipped": [{"file": NAME, "reason": "is empty (0 bytes)"}],
    "verdict": "backbone takes 60 % of the 20.0 ms per image",
    "files": {"trace": "runs/x/trace.json.gz", "pictures": "runs/x/pictures", "tensorboard": "runs/x/tb"},
}


def shown(summary: dict[str, Any], width: int = 100, after: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    render(summary, console, after_training=after)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("width", [80, 100])
def test_an_inference_fits_the_terminal_and_shows_every_part(width: int) -> None:
    text = shown(SAMPLE, width)
    assert max(map(len, text.splitlines())) <= width
    text = " ".join(text.split())  # long lines are folded
    for words in (
        "median 20.0 ms per image, 95 % interval [19.5, 20.5], n 200",
        "p95 28.0 ms, p99 n/a (needs 459)",
        "50.0 images/s",
        "200 measured, once each",
        "95.0 ms",
        "Stages of an image",
        "decode",
        "Most expensive modules",
        "Cost against content",
        "ms per 100 boxes",
        "81.0 %",
        "peak 2.40 MB in a pass, reached in transform",
        "aten::sub",
        "12.5 detections per image, 3.00 of them above 0.70",
        "is empty (0 bytes)",
        "87 boxes (median 12)",
        "1.012 x a step without a recorder",
        "runs/x/pictures",
        "runs/x/tb",
        "random weights",
    ):
        assert words in text, words
    assert "Phases of a step" not in text
    assert "backward" not in text


def test_a_line_that_explains_nothing_is_left_to_the_json() -> None:
    assert "ms per megapixel" not in shown(SAMPLE)


def test_bars_of_the_stages_lie_end_to_end_and_parts_have_none() -> None:
    lines = shown(SAMPLE).splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("Stages of an image")) + 2
    bars = [(line.find("█"), line.count("█")) for line in lines[first : first + 5]]
    assert bars[3] == (-1, 0)
    places = [bar for index, bar in enumerate(bars) if index != 3]
    assert [start + cells for start, cells in places[:-1]] == [start for start, _ in places[1:]]
    assert sum(cells for _, cells in places) == 20


def test_names_of_files_stay_text_and_cannot_steer_the_terminal() -> None:
    text = shown(SAMPLE, width=200)
    assert "\x1b" not in text
    assert text.count("[bold]x[/] \\x1b[2J <img src=x onerror=alert(1)>.jpg") == 2


def test_the_next_command_repeats_an_inference_as_an_inference() -> None:
    run = SAMPLE["run"]
    assert f"detscope infer --config {run}/config.toml --level ops" in shown(SAMPLE, width=120)
    assert f"detscope report {run} --open" in shown(SAMPLE, after=True)


@pytest.mark.parametrize("key", [key for key in SAMPLE if key != "verb"])
@pytest.mark.parametrize("value", [None, [], {}, "odd", "removed"])
def test_every_part_may_be_missing_or_odd(key: str, value: Any) -> None:
    summary = copy.deepcopy(SAMPLE)
    if value == "removed":
        del summary[key]
    else:
        summary[key] = value
    assert "verdict" in shown(summary)
