"""The course of a training on a terminal: epoch by epoch, and what it left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from detscope.report.figures import ABSENT, is_number, mapping, number, plain, rows
from detscope.report.terminal_tables import figure_table

Summary = Mapping[str, Any]

SHOWN_EPOCHS = 20
UNDEFINED = "undefined"
_KINDS = {"coco_box": "", "coco_mask": "mask ", "coco_keypoints": "keypoint "}


def epochs_table(summary: Summary) -> Table | None:
    """Loss, learning rate and accuracy by epoch; of many epochs the last ones."""
    epochs = rows(summary, "epochs")
    if not epochs:
        return None
    kinds = [kind for kind in _KINDS if any(kind in mapping(row, "accuracy") for row in epochs)]
    figures = [(kind, name) for kind in kinds for name in ("AP", "AP50")]
    shown = epochs[-SHOWN_EPOCHS:]
    title = "Epochs" if len(shown) == len(epochs) else f"Epochs (the last {len(shown)} of {len(epochs)})"
    table = figure_table(
        title, ["epoch"], ["loss", "learning rate", *(f"{_KINDS[kind]}{name}" for kind, name in figures)]
    )
    for row in shown:
        accuracy = mapping(row, "accuracy")
        cells = [_figure(accuracy, kind, name) for kind, name in figures]
        table.add_row(number(row.get("epoch"), 0), number(row.get("loss"), 3), _rate(row), *cells)
    return table


def course_lines(summary: Summary) -> Iterator[tuple[str, str, str]]:
    """Which evaluation was best, and which run was continued."""
    best = mapping(mapping(summary, "accuracy"), "best")
    if is_number(best.get("value")):
        kind = plain(best.get("kind") or "").removeprefix("coco_")
        text = (
            f"{kind} {plain(best.get('figure') or '')} {number(best['value'], 3)}, epoch {best.get('epoch')}"
        )
        held_out = mapping(summary, "held_out").get("images")
        yield "best", text + (f", on {held_out} held-out images" if is_number(held_out) else ""), "bold"
    earlier = mapping(summary, "resumed_from")
    if earlier:
        yield "continues", f"{plain(earlier.get('run') or ABSENT)} from step {earlier.get('step')}", ""


def _rate(row: Mapping[str, Any]) -> str:
    rate = row.get("learning_rate")
    return f"{rate:.3g}" if is_number(rate) else ABSENT


def _figure(accuracy: Mapping[str, Any], kind: str, name: str) -> str:
    """Empty where this epoch was not evaluated; undefined where there was nothing to be found."""
    figures = mapping(accuracy, kind)
    if name not in figures:
        return ""
    return number(figures[name], 3) if is_number(figures[name]) else UNDEFINED
