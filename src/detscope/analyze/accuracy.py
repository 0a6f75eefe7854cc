"""What an evaluation found, for the summary of its run: `evaluation.json` and a verdict in one sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detscope.errors import InputError
from detscope.runs.reader import Run

UNDEFINED = "undefined (no ground truth)"
EVALUATION = "evaluation.json"
_KINDS = {"coco_box": "boxes", "coco_mask": "masks", "coco_keypoints": "keypoints"}


def add_evaluation(summary: dict[str, Any], run: Run) -> None:
    """Put an evaluation into the summary of its run; `accuracy` has its headline and all it holds."""
    found = read_evaluation(run.folder)
    if found is None:
        summary["accuracy"] = None
        summary["verdict"] = "no accuracy: the evaluation did not come to its end"
        return
    box = found["coco_box"]["figures"]
    throughput = found.get("throughput") or {}
    summary["accuracy"] = {
        **{name: value for name, value in box.items() if name in ("AP", "AP50")},
        **{kind: found[kind]["figures"] for kind in _KINDS if kind in found},
        **{kind: {"AP": found[kind]["mean"]} for kind in ("voc07", "voc10")},
        "evaluation": found,
    }
    summary["images_per_s"] = throughput.get("images_per_s")
    summary["cannot_tell"] = list(found.get("cannot_tell") or [])
    summary["files"] = {
        name: str(run.folder / file)
        for name, file in (found.get("files") or {}).items()
        if (run.folder / file).exists()
    }
    summary["verdict"] = evaluation_verdict(found)


def read_evaluation(folder: Path) -> dict[str, Any] | None:
    """The content of a run's `evaluation.json`; None where it evaluated nothing, or did not finish."""
    path = folder / EVALUATION
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content["coco_box"]["figures"], content["voc07"]["mean"], content["voc10"]["mean"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is damaged: {type(error).__name__} {error}", "evaluate again, or restore the file"
        ) from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is damaged: no object", "evaluate again, or restore the file")
    return content


def evaluation_verdict(found: Mapping[str, Any]) -> str:
    """Accuracy in a sentence: the headline, and which classes are best and worst."""
    parts = []
    for kind, name in _KINDS.items():
        if kind in found:
            figures = found[kind]["figures"]
            parts.append(f"{name} AP {_figure(figures['AP'])}, AP50 {_figure(figures['AP50'])}")
    classes = [row for row in found["coco_box"]["classes"] if row["AP"] is not None]
    ranked = sorted(classes, key=lambda row: row["AP"])
    if len(ranked) > 1 and ranked[0]["AP"] < ranked[-1]["AP"]:
        best, worst = ranked[-1], ranked[0]
        parts.append(
            f"best class {best['name']} ({best['AP']:.3f}), worst {worst['name']} ({worst['AP']:.3f})"
        )
    undefined = len(found["coco_box"]["classes"]) - len(classes)
    if undefined and classes:
        parts.append(f"{undefined} classes without ground truth")
    return "; ".join(parts)


def _figure(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.3f}"
