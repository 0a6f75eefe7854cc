from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from detscope.report.terminal import render
from detscope.report.terminal_tables import BAR_CELLS, phases_table, top_modules

SAMPLE: dict[str, Any] = {
    "schema": 1,
    "run": "runs/20261115T203100Z-train-tiny_fasterrcnn-1a2b",
    "verb": "train",
    "rerun": "detscope train --config runs/20261115T203100Z-train-tiny_fasterrcnn-1a2b/config.toml",
    "status": "ok",
    "reason": None,
    "model": {"name": "tiny_fasterrcnn", "family": "fasterrcnn", "parameters": 1234567},
    "weights": {"kind": "random", "note": "random weights change proposal and NMS load"},
    "data": {"name": "synthetic", "images": 64, "classes": 6},
    "device": "cpu",
    "batch_size": 2,
    "precision": "fp32",
    "level": "ops",
    "step_ms": {
        "p50": 312.4,
        "ci95": [305.1, 320.9],
        "n": 20,
        "mean": 315.0,
        "cv": 0.04,
        "p95": "n/a (needs 59)",
        "p99": "n/a (needs 459)",
    },
    "stability": {"verdict": "stable", "reason": "spread 4 % of the mean"},
    "outliers": [{"step": 7, "ms": 801.2, "times_median": 2.56, "why": "18 boxes"}],
    "warmup": {"n": 3, "first_ms": 912.0, "p50": 402.0},
    "images_per_s": 6.4,
    "phases_ms": {
        "data": 3.2,
        "transfer": 0.1,
        "forward": 120.0,
        "backward": 170.0,
        "optimizer": 18.0,
        "other": 3.7,
    },
    "phases": [
        {"name": "data", "ms": 3.2, "share": 0.0102, "p50": 3.0, "ci95": [2.8, 3.3], "n": 20},
        {"name": "transfer", "ms": 0.1, "share": 0.0003, "p50": 0.1, "ci95": [0.1, 0.1], "n": 20},
        {"name": "forward", "ms": 120.0, "share": 0.381, "p50": 119.0, "ci95": [117.0, 121.0], "n": 20},
        {"name": "backward", "ms": 170.0, "share": 0.5397, "p50": 169.0, "ci95": [165.0, 173.0], "n": 20},
        {"name": "optimizer", "ms": 18.0, "share": 0.0571, "p50": 18.0, "ci95": [17.5, 18.4], "n": 20},
        {"name": "other", "ms": 3.7, "share": 0.0117, "p50": 3.5, "ci95": [3.4, 3.9], "n": 20},
    ],
    "stages_ms": {"backbone": 150.0, "rpn": 60.0},
    "stages": [
        {
            "name": "backbone",
            "depth": 0,
            "forward_ms": 60.0,
            "backward_ms": 90.0,
            "total_ms": 150.0,
            "share": 0.517,
        },
        {
            "name": "backbone.fpn",
            "depth": 1,
            "forward_ms": 20.0,
            "backward_ms": 30.0,
            "total_ms": 50.0,
            "share": 0.172,
        },
        {
            "name": "rpn",
            "depth": 0,
            "forward_ms": 30.0,
            "backward_ms": 30.0,
            "total_ms": 60.0,
            "share": 0.207,
        },
    ],
    "modules": [
        {
            "path": "",
            "kind": "model",
            "type": "FasterRCNN",
            "calls": 1,
            "forward_ms": 119.0,
            "backward_ms": 169.0,
            "self_forward_ms": 1.0,
            "self_backward_ms": 1.0,
            "total_ms": 288.0,
            "share": 1.0,
            "parameters": 1234567,
        },
        {
            "path": "backbone.body.layer1.0.conv1",
            "kind": "module",
            "type": "Conv2d",
            "calls": 1,
            "forward_ms": 9.0,
            "backward_ms": 19.0,
            "self_forward_ms": 9.0,
            "self_backward_ms": 19.0,
            "total_ms": 28.0,
            "share": 0.097,
            "parameters": 1000,
        },
    ],
    "backward_attributed": 0.998,
    "backward_attributed_by": "operators",
    "operators": [
        {
            "name": "aten::convolution_backward",
            "direction": "backward",
            "module": "backbone.body.layer1.0.conv1",
            "count": 12,
            "self_ms": 15.2,
            "share": 0.1,
        }
    ],
    "content": {
        "boxes_per_image": 3.4,
        "proposals_per_image": 500.0,
        "pixels_per_image": 81920,
        "padding_share": 0.03,
    },
    "loader": {
        "workers": [
            {
                "worker": 0,
                "batches": 12,
                "load_ms": 0.4,
                "decode_ms": 3.2,
                "transform_ms": 0.3,
                "collate_ms": 0.1,
                "busy_share": 0.02,
                "wait_ms": 0.2,
            }
        ],
        "wait_ms": 3.2,
        "capacity_images_per_s": 500.0,
        "demand_images_per_s": 6.5,
    },
    "overhead_ratio": {"value": 1.012, "ci95": [1.001, 1.024], "n": 5},
    "telemetry": [{"source": "process", "metric": "cpu", "unit": "%", "mean": 180.0, "max": 199.0}],
    "notes": ["a note"],
    "cannot_tell": ["device time: no GPU"],
    "verdict": "computing: backward takes 54.0 % of the step and data wait 1.0 %",
    "files": {"trace": "runs/20261115T203100Z-train-tiny_fasterrcnn-1a2b/trace.json.gz"},
}


def shown(summary: dict[str, Any], width: int = 100, *, after_training: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    render(summary, console, after_training=after_training)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def changed(**parts: Any) -> dict[str, Any]:
    return copy.deepcopy(SAMPLE) | parts


@pytest.mark.parametrize("width", [80, 100])
def test_a_run_fits_the_terminal_and_shows_every_part(width: int) -> None:
    text = shown(SAMPLE, width)
    assert max(map(len, text.splitlines())) <= width
    for words in (
        "tiny_fasterrcnn (fasterrcnn, 1.2 M parameters)",
        "random weights change proposal and NMS load",
        "synthetic, 64 images, 6 classes",
        "computing: backward takes 54.0 % of the step",
        "median 312.4 ms, 95 % interval [305.1, 320.9], 20 steps",
        "p95 n/a (needs 59), p99 n/a (needs 459)",
        "6.40 images/s",
        "stable: spread 4 % of the mean",
        "step 7: 801.2 ms, 2.56 x the median: 18 boxes",
        "Phases of a step",
        "Stages, ms per step",
        "Most expensive modules",
        "Most expensive operators",
        "Loader workers",
        "can deliver 500.0 images/s; the loop could take 6.50 images/s",
        "99.8 % of its time belongs to modules (by operators)",
        "1.012 x a step without a recorder, 95 % interval [1.001, 1.024], n 5",
        "cannot tell: device time: no GPU",
        "runs/20261115T203100Z-train-tiny_fasterrcnn-1a2b",
        "ui.perfetto.dev",
    ):
        assert words in text


def test_bars_of_the_phases_lie_end_to_end_and_fill_the_step() -> None:
    table = phases_table(SAMPLE, ascii_only=True)
    assert table is not None
    bars = [str(bar) for bar in list(table.columns[3].cells)[:-1]]
    covered = "".join(bar.strip(" ") for bar in bars)
    assert covered == "#" * BAR_CELLS
    ends = [len(bar) for bar in bars if "#" in bar]
    assert ends == sorted(ends)


def test_stages_are_a_tree_with_both_directions() -> None:
    lines = [line.rstrip() for line in shown(SAMPLE).splitlines()]
    index = next(i for i, line in enumerate(lines) if line.startswith("Stages"))
    assert lines[index + 2].split() == ["backbone", "60.0", "90.0", "150.0", "51.7", "%"]
    assert lines[index + 3].startswith("  fpn ")


def module(path: str, total: float, own: float | None) -> dict[str, Any]:
    return {"path": path, "total_ms": total, "self_forward_ms": own, "self_backward_ms": 0.0}


def test_modules_that_only_pass_time_on_to_their_children_are_left_out() -> None:
    modules = [module("", 100, 1), module("a", 50, 2.4), module("a.b", 48, 48), module("c", 40, 3)]
    assert [row["path"] for row in top_modules(modules)] == ["a.b", "c"]


def test_at_most_ten_modules_are_shown_the_most_expensive_first() -> None:
    modules = [module(str(index), index, index) for index in range(1, 31)]
    assert [row["path"] for row in top_modules(modules)] == [str(index) for index in range(30, 20, -1)]


def test_random_weights_are_said_even_without_a_note() -> None:
    assert "random weights" in shown(changed(weights={"kind": "random"}))


def test_a_partial_run_says_so_with_the_reason() -> None:
    assert "partial: killed at step 9" in shown(changed(status="partial", reason="killed at step 9"))


def test_the_phases_end_with_the_median_step_they_add_up_to() -> None:
    table = phases_table(SAMPLE)
    assert table is not None
    assert [str(list(column.cells)[-1]) for column in table.columns][:2] == ["step", "312.4"]


def test_bytes_are_shown_in_units_people_use_and_single_cores_are_left_out() -> None:
    readings = [
        {"source": "process", "metric": "rss_bytes", "unit": "bytes", "mean": 910_211_025.0, "max": 1.2e9},
        {"source": "core:0", "metric": "cpu_percent", "unit": "%", "mean": 1.0, "max": 2.0},
    ]
    text = shown(changed(telemetry=readings))
    assert "910.2 MB" in text
    assert "1.20 GB" in text
    assert "core:0" not in text


def test_a_run_below_the_current_folder_is_named_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = shown(changed(run=str(tmp_path / "runs" / "x")), after_training=True)
    assert "detscope report runs/x --open" in text
    assert str(tmp_path) not in text


def test_an_unknown_own_cost_says_why() -> None:
    assert "cannot tell: no bare steps" in shown(
        changed(overhead_ratio={"value": None, "why": "no bare steps"})
    )


def test_names_of_users_stay_text_and_cannot_steer_the_terminal() -> None:
    name = "[bold red]x[/] [/nothing] \x1b[2J <img src=x onerror=alert(1)>"
    text = shown(
        changed(
            model={"name": name, "family": name},
            notes=[name],
            verdict=name,
            stages=[{"name": name, "depth": 0}],
            modules=[module(name, 1, 1)],
        ),
        width=200,
    )
    assert "\x1b" not in text
    assert text.count("[bold red]x[/] [/nothing] \\x1b[2J <img src=x onerror=alert(1)>") == 6


def test_the_next_command_depends_on_what_was_just_done() -> None:
    run = SAMPLE["run"]
    assert f"detscope report {run} --open" in shown(SAMPLE, after_training=True)
    assert f"detscope show {run} --json" in shown(SAMPLE)  # everything there is has been recorded
    assert f"detscope train --config {run}/config.toml --level ops" in shown(
        changed(level="modules"), width=120
    )


def test_an_empty_summary_says_cannot_tell() -> None:
    text = shown({})
    assert text.count("cannot tell") >= 5
    assert "Phases" not in text


def parts(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in the summary."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in inside for place in ((*path, key), *parts(item, (*path, key)))]


PLACES = parts(SAMPLE)
ODD = st.sampled_from(
    ["removed", None, [], {}, "n/a (needs 59)", float("nan"), float("inf"), -1, True, [None], 10**30]
)


def damage(summary: dict[str, Any], place: tuple[Any, ...], value: Any) -> None:
    inner: Any = summary
    for key in place[:-1]:
        try:
            inner = inner[key]
        except (KeyError, IndexError, TypeError):
            return  # an earlier damage took the place away
    if isinstance(inner, dict) and value == "removed":
        inner.pop(place[-1], None)
    elif isinstance(inner, dict) or (isinstance(inner, list) and place[-1] in range(len(inner))):
        inner[place[-1]] = value


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), ODD), min_size=1, max_size=12))
def test_whatever_is_missing_or_odd_the_rest_is_shown(damages: list[tuple[tuple[Any, ...], Any]]) -> None:
    summary = copy.deepcopy(SAMPLE)
    for place, value in damages:
        damage(summary, place, copy.deepcopy(value))
    assert "verdict" in shown(summary)


@pytest.mark.parametrize("key", list(SAMPLE))
@pytest.mark.parametrize("value", [None, "removed"])
def test_every_part_may_be_missing_or_null(key: str, value: Any) -> None:
    summary = copy.deepcopy(SAMPLE)
    damage(summary, (key,), value)
    assert "verdict" in shown(summary)
