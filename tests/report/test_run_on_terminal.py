"""A run on a terminal: its sections whole; names stay names, what is not known is said."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from detscope.analyze.drawing import ReportData
from detscope.analyze.step.modules import ModuleFigures
from detscope.analyze.summary import RunSummary
from detscope.report.render.terminal import print_whole
from detscope.report.render.terminal_table import BAR_CELLS
from detscope.report.sections import make_sections
from detscope.report.sections.modules import top_modules
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter
from made_figures import made_figure

HOSTILE = "[bold red]x[/] [/nothing] \x1b[2J <img src=x onerror=alert(1)>"
SHARES = {"data": 0.05, "transfer": 0.0, "forward": 0.4, "backward": 0.5, "optimizer": 0.04, "other": 0.01}
TRAINING: dict[str, Any] = {
    "verb": "train",
    "run": "runs/a-run",
    "rerun": "detscope train --config runs/a-run/config.toml",
    "status": "ok",
    "verdict": "backward takes 50 % of the step",
    "device": "cpu",
    "batch_size": 2,
    "precision": "fp32",
    "level": "ops",
    "images_per_s": 6.4,
    "step_ms": {
        "p50": 312.4,
        "ci95": (305.1, 320.9),
        "n": 20,
        "mean": 320.0,
        "mean_n": 25,
        "p95_why": "needs 59",
        "p99_why": "needs 459",
    },
    "stability": {"verdict": "stable", "reason": "steps spread by 4 %"},
    "outliers": [{"step": 7, "ms": 801.2, "times_median": 2.56, "why": "18 boxes"}],
    "warmup": {"n": 3, "first_ms": 900.0, "p50": 400.0},
    "phases": [{"name": name, "ms": share * 312.4, "share": share} for name, share in SHARES.items()],
    "stages": [
        {"name": "backbone", "forward_ms": 60.0, "backward_ms": 90.0, "total_ms": 150.0, "share": 0.517},
        {"name": "backbone.fpn", "depth": 1, "forward_ms": 20.0, "backward_ms": 30.0, "total_ms": 50.0},
    ],
    "modules": [
        {
            "path": "backbone.body",
            "type": "ResNet",
            "total_ms": 90.0,
            "self_forward_ms": 40.0,
            "self_backward_ms": 0.0,
        }
    ],
    "operators": [{"name": "aten::conv2d", "direction": "forward", "module": "backbone", "self_ms": 30.0}],
    "loader": {
        "wait_ms": 15.6,
        "capacity_images_per_s": 40.0,
        "demand_images_per_s": 6.7,
        "workers": [{"worker": 0, "batches": 4}],
    },
    "overhead_ratio": {"value": 1.012, "ci95": (1.001, 1.024), "n": 5},
    "backward_attributed": 0.98,
    "backward_attributed_by": "operators",
    "advice": [
        {
            "rule": "workers",
            "title": "4 workers",
            "evidence": "It waits.",
            "gain_share": 0.1,
            "how": "num_workers=4",
        }
    ],
    "notes": ["a note"],
    "cannot_tell": ["GPU telemetry: no driver"],
}
INFO: dict[str, Any] = {
    "model": {"name": "tiny_fasterrcnn", "family": "fasterrcnn", "parameters": 1_200_000},
    "weights": {"kind": "random"},
    "data": {"name": "synthetic", "images": 64, "classes": 6},
}


@pytest.fixture
def shown(tmp_path: Path):
    """What is printed of a summary; long lines are folded."""

    def show(changes: dict[str, Any] | None = None, width: int = 100, **about: Any) -> str:
        writer = RunWriter(tmp_path / "runs", "train", "model", {**INFO, **about.pop("info", {})})
        writer.close_run("ok")
        summary = made_figure(RunSummary, {**TRAINING, **(changes or {})})
        console = Console(width=width, record=True, file=io.StringIO(), **about.pop("console", {}))
        data = ReportData(load_run(writer.folder), summary, **about)
        print_whole(make_sections(data)[0], console)
        return console.export_text()

    return show


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_run_fits_the_terminal_and_tells_every_part(shown, width: int) -> None:
    text = shown(width=width)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for part in (
        "tiny_fasterrcnn (fasterrcnn, 1.2 M parameters)",
        "random weights: proposals and NMS load differ",
        "synthetic, 64 images, 6 classes",
        "Backward takes 50 % of the step",
        "median 312.4 ms, 95 % interval [305.1, 320.9], 20 steps",
        "p95 needs 59, p99 needs 459",
        "6.40 images/s, mean 320.0 ms, over all 25 measured",
        "stable: steps spread by 4 %",
        "3 steps apart: first 900.0 ms, median 400.0 ms",
        "1.012 x a step without a recorder, 95 % interval [1.001, 1.024], n 5",
        "98.0 % of its time belongs to modules (by operators)",
        "4 workers (saves up to 10 % of the step)",
        "can deliver 40.0 images/s; the loop could take 6.70 images/s",
        "cannot tell: GPU telemetry: no driver",
        "a note",
    ):
        assert part in words, part
    for part in ("Phases of a step", "801.2", "18 boxes", "aten::conv2d", "Work per batch"):
        assert part in text, part


def test_of_a_step_that_accumulates_batches_one_of_them_is_told_too(shown) -> None:
    batch = {"per_step": 4.0, "ms": 78.1, "images": 2.0, "images_per_step": 8.0}
    words = " ".join(shown({"accumulated": batch}).split())
    assert "batches 4 per step, 78.1 ms each, 2.0 images each: 8.0 per step" in words


def test_bars_of_the_phases_lie_end_to_end_and_fill_the_step(shown) -> None:
    lines = shown().splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("Phases of a step")) + 2
    bars = [line[line.find("%") + 1 :] for line in lines[first : first + len(SHARES)]]
    assert sum(bar.count("█") for bar in bars) == BAR_CELLS
    places = [(bar.find("█"), bar.rfind("█") + 1) for bar in bars if "█" in bar]
    assert [end for _, end in places[:-1]] == [start for start, _ in places[1:]]
    step = lines[first + len(SHARES)]
    assert step.split()[:4] == ["step", "312.4", "100.0", "%"], "what the phases add up to"


def test_stages_are_a_tree_with_both_directions(shown) -> None:
    lines = shown().splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("Stages and")) + 2
    assert lines[first].split()[:7] == ["backbone", "150.0", "51.7", "%", "█" * 10, "60.0", "90.0"]
    assert lines[first + 1].startswith("  backbone.fpn ")
    assert "█" not in lines[first + 1], "a part is in the bar of its whole"


def module(path: str, total: float, own: float) -> ModuleFigures:
    return made_figure(
        ModuleFigures, {"path": path, "total_ms": total, "self_forward_ms": own, "self_backward_ms": 0.0}
    )


def test_modules_that_only_pass_time_on_to_their_children_are_left_out() -> None:
    modules = [module("(model)", 100, 1), module("a", 50, 2.4), module("a.b", 48, 48), module("c", 40, 3)]
    assert [row.path for row in top_modules(modules)] == ["a.b", "c"]


def test_at_most_ten_modules_are_told_the_most_expensive_first() -> None:
    modules = [module(str(index), index, index) for index in range(30, 0, -1)]
    assert [row.path for row in top_modules(modules)] == [str(index) for index in range(30, 20, -1)]


def test_a_partial_run_says_so_with_the_reason(shown) -> None:
    assert "partial: killed at step 9" in shown({"status": "partial", "reason": "killed at step 9"})


def test_an_unknown_own_cost_says_why(shown) -> None:
    assert "cannot tell: no bare steps" in shown({"overhead_ratio": {"why": "no bare steps"}})


def test_what_was_recorded_elsewhere_has_no_cost_of_ours(shown) -> None:
    text = shown({"verb": "import", "overhead_ratio": {"why": "no bare steps"}})
    assert "own cost" not in text
    assert "bare ones as well" not in text


def test_a_run_below_the_current_folder_is_named_from_there(shown, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = shown({"run": str(tmp_path / "runs" / "x")}, just_ended=True)
    assert "detscope report runs/x --open" in text
    assert str(tmp_path) not in text[text.rindex("\nrun ") :], "what there is, and what to type"


def test_the_next_command_depends_on_what_was_just_done(shown) -> None:
    assert "detscope report runs/a-run --open" in shown(just_ended=True)
    assert "detscope show runs/a-run --json" in shown()  # everything there is has been recorded
    assert "detscope train --config runs/a-run/config.toml --level ops" in shown({"level": "modules"})


def test_names_of_users_stay_text_and_cannot_steer_the_terminal(shown) -> None:
    stages = [{"name": HOSTILE, "total_ms": 1.0, "forward_ms": 1.0}]
    modules = [{"path": HOSTILE, "total_ms": 1.0, "self_forward_ms": 1.0, "self_backward_ms": 0.0}]
    changes = {"notes": [HOSTILE], "verdict": HOSTILE, "stages": stages, "modules": modules}
    text = shown(changes, width=250, info={"model": {"name": HOSTILE, "family": HOSTILE}})
    assert "\x1b" not in text
    assert text.count("[bold red]x[/] [/nothing] \\x1b[2J <img src=x onerror=alert(1)>") >= 6


def test_a_run_without_any_figure_says_cannot_tell(shown) -> None:
    empty = dict.fromkeys(("step_ms", "phases", "stages", "modules", "operators"), None)
    changes = {**{key: [] for key in empty if key != "step_ms"}, "step_ms": {}, "images_per_s": None}
    text = shown({**changes, "verdict": "cannot tell: no complete step was recorded"})
    assert "cannot tell: no complete step" in text.lower()
    assert "Phases of a step" not in text


INFERENCE = {
    "verb": "infer",
    "batch_size": 1,
    "images": 200,
    "first_image_ms": 80.0,
    "detections": {"per_image": 5.0, "above_score_per_image": 2.0},
    "score": 0.5,
    "skipped": [{"file": HOSTILE, "reason": "not an image"}],
    "outliers": [
        {"step": 3, "ms": 90.0, "file": "big.jpg", "size": "4000 x 3000", "special": ("12,000,000 pixels",)}
    ],
    "pass_memory": {"peak_bytes": 25e6, "peak_at": {"module": "backbone"}},
    "backward_attributed": None,
}


def test_an_inference_tells_its_images_and_what_could_not_be_measured(shown) -> None:
    text = shown(INFERENCE, width=250)
    for part in (
        "200 measured, once each",
        "5.00 detections per image, 2.00 of them above 0.50",
        "the very first took 80.0 ms",
        "big.jpg; 4000 x 3000",
        "12,000,000 pixels",
        "not an image",
        "peak 25.0 MB in a pass, reached in backbone",
    ):
        assert part in text, part
    assert "\x1b" not in text


def evaluation(name: str = "synthetic") -> dict[str, Any]:
    figures = {"AP": 0.0, "AP50": 0.1}
    classes = [
        {"id": 1, "name": "aeroplane", "objects": 3, "detections": 9, "AP": 0.636},
        {"id": 2, "name": "[red]boat"},
    ]
    voc = {"mean": 0.565, "classes": [{"name": "aeroplane", "AP": 0.636}, {"name": "[red]boat", "AP": None}]}
    found = {
        "coco_box": {"figures": figures, "classes": classes},
        "voc07": voc,
        "voc10": voc,
        "data": {"name": name},
        "throughput": {"images_per_s": 4.0, "model_images_per_s": 5.0},
        "left_out": {"images": 1, "detections": [{"reason": "of classes unknown", "count": 2}]},
        "worst": [{"file": f"{index}.jpg", "missed": 2, "wrong": 1, "right": 0} for index in range(7)],
    }
    return {"verb": "eval", "accuracy": {"AP": 0.0, "AP50": 0.1, "coco_box": figures, "evaluation": found}}


def test_zero_accuracy_is_zero_and_undefined_accuracy_is_said(shown) -> None:
    lines = [line.rstrip() for line in shown(evaluation(), width=160).splitlines()]
    assert any(line.startswith("AP ") and line.endswith("0.000") for line in lines)
    assert any(line.startswith("AP_large") and line.endswith("undefined") for line in lines)
    assert any(line.startswith("[red]boat") and "undefined" in line for line in lines)


def test_an_evaluation_tells_what_it_covers_how_fast_it_was_and_where_it_is_worst(shown) -> None:
    text = shown(evaluation(), width=160)
    assert "1 image; 2 detections of classes unknown" in text
    assert "4.00 images/s, loading included; 5.00 images/s in the model alone" in text
    assert "0.jpg" in text and "6.jpg" in text
    assert voc_rows(text) == ["avg mAP 0.565 0.565"], "the classes of VOC's list are for VOC's data"


def test_voc_data_has_the_list_of_classes_that_people_know(shown) -> None:
    text = shown(evaluation("voc"), width=160)
    assert voc_rows(text) == [
        "aeroplane 0.636 0.636",
        "[red]boat undefined undefined",
        "avg mAP 0.565 0.565",
    ]


def voc_rows(text: str) -> list[str]:
    """The rows of the table that begins with its header."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    first = lines.index("class 2007, 11 points since 2010, area") + 1
    return lines[first : lines.index("", first)]
