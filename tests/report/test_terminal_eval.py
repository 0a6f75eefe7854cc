"""An evaluation on a terminal: undefined is said, VOC's list is the one people know."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from detscope.report.terminal import render


def figures(**given: Any) -> dict[str, Any]:
    sizes = ("small", "medium", "large")
    names = ["AP", "AP50", "AP75", *(f"AP_{size}" for size in sizes)]
    names += ["AR_1", "AR_10", "AR_100", *(f"AR_{size}" for size in sizes)]
    return {name: given.get(name, 0.5) for name in names}


def summary_of(name: str = "coco", **more: Any) -> dict[str, Any]:
    classes = [
        {"id": 1, "name": "aeroplane", "objects": 3, "detections": 9, **figures(AP=0.636)},
        {"id": 2, "name": "[red]boat", "objects": 0, "detections": 4, **dict.fromkeys(figures())},
    ]
    voc = {"mean": 0.565, "classes": [{"name": "aeroplane", "AP": 0.636}, {"name": "[red]boat", "AP": None}]}
    found = {
        "objects": 3,
        "crowd": 0,
        "difficult": 0,
        "detections": 13,
        "coco_box": {"figures": figures(AP=0.0, AP_large=None), "classes": classes},
        "voc07": voc,
        "voc10": voc,
        "data": {"name": name, "split": "val"},
        "throughput": {"images": 8, "wall_s": 2.0, "images_per_s": 4.0, "model_images_per_s": 5.0},
        "left_out": {"images": 0, "annotations": 0, "clipped": 0, "detections": {}},
        "worst": [{"file": f"{number}.jpg", "missed": 2, "wrong": 1, "right": 0} for number in range(7)],
        **more,
    }
    return {
        "verb": "eval",
        "run": "runs/a-run",
        "status": "ok",
        "model": {"name": "m"},
        "verdict": "boxes AP 0.000",
        "accuracy": {"evaluation": found},
        "files": {"worst": "runs/a-run/worst"},
    }


def shown(summary: dict[str, Any], width: int = 120) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    render(summary, console)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_zero_is_zero_and_undefined_is_said():
    lines = shown(summary_of())
    assert any(line.startswith("AP ") and line.endswith("0.000") for line in lines)
    assert any(line.startswith("AP_large") and "undefined" in line for line in lines)
    assert not any("-1" in line for line in lines)
    assert any(line.startswith("[red]boat") and " - " in line for line in lines)
    assert any("-: undefined (no ground truth)" in line for line in lines)


def test_the_list_of_voc_is_the_one_people_know():
    lines = [line.split("    ")[0].strip() for line in shown(summary_of("voc"))]
    start = lines.index("aeroplane: 0.636")
    assert lines[start : start + 3] == ["aeroplane: 0.636", "[red]boat: undefined", "avg mAP: 0.565"]


def test_other_data_shows_both_means_of_voc_in_a_line():
    text = "\n".join(shown(summary_of()))
    assert "avg mAP 0.565 (11 points, 2007), 0.565 (area, since 2010)" in text


def test_throughput_stands_beside_accuracy_with_what_it_includes():
    text = "\n".join(shown(summary_of()))
    assert "4.00 images/s, loading included; 5.00 images/s in the model" in text


def test_the_worst_images_are_named_and_their_pictures_found():
    text = "\n".join(shown(summary_of()))
    assert "0.jpg: 2 missed, 1 wrong, 0 right" in text
    assert "and 2 more, all drawn" in text
    assert "runs/a-run/worst" in text


def test_an_evaluation_that_did_not_end_is_shown_without_a_crash():
    text = "\n".join(shown({**summary_of(), "accuracy": None, "status": "failed", "reason": "no space"}))
    assert "cannot tell" in text
    assert "no space" in text
