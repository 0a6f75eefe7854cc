"""What an evaluation found, for the summary of its run: `evaluation.json` and a verdict in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from detscope.runs.reader import Run, read_json

UNDEFINED = "undefined (no ground truth)"
EVALUATION = "evaluation.json"
_KINDS = {"coco_box": "boxes", "coco_mask": "masks", "coco_keypoints": "keypoints"}


class _Class(TypedDict):
    """Figures of one class."""

    name: str
    AP: float | None


class _Headline(TypedDict):
    """Figures over all classes, as far as a sentence names them."""

    AP: float | None
    AP50: float | None


class _Coco(TypedDict):
    """COCO's measures of boxes, masks or keypoints."""

    figures: _Headline
    classes: list[_Class]


class _Voc(TypedDict):
    """VOC's measures of boxes."""

    mean: float | None
    classes: list[_Class]


class _Throughput(TypedDict, total=False):
    """How fast it went."""

    images_per_s: float | None


class Evaluation(TypedDict):
    """What `evaluation.json` says, as far as it is computed with."""

    coco_box: _Coco
    coco_mask: NotRequired[_Coco]
    coco_keypoints: NotRequired[_Coco]
    voc07: _Voc
    voc10: _Voc
    throughput: NotRequired[_Throughput | None]
    cannot_tell: NotRequired[list[str] | None]
    files: NotRequired[dict[str, str] | None]


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
    if not path.exists():
        return None
    return read_json(path, Evaluation, "evaluate again, or restore the file")


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
