"""Boxes padded to a count that images do not have: everything after works on rows that are none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.advice.rules.lines._placed import put_at, without_cost
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.census import CensusPlace
from detscope.analyze.findings.finding import Finding

_FROM_LOADER = "rows of boxes from a loader"
LEAST_WASTE = 0.5  # of the rows
LEAST_ROWS = 16  # that are none, per step


def find_lines(case: LineCase) -> Iterable[Finding]:
    """Tensors [images, rows, columns] that were mostly empty when they were first read."""
    for found in case.by_function(case.places("padding")):
        rows, boxes, largest, capacity = _count_rows(found, case)
        if boxes is None or rows - boxes < max(LEAST_ROWS, LEAST_WASTE * rows):
            continue
        fixed = largest is not None and largest <= capacity / 2
        shape = found[0].facts["shape"]
        most = f" The image with most has {largest}." if largest is not None else ""
        finding = case.make_finding(
            PART.name,
            found,
            f"Boxes are padded to {capacity:g} rows per image ({shape}): {boxes:.3g} of {rows:.3g} rows per"
            f" step are boxes, {1 - boxes / rows:.0%} are padding.{most}",
            "Pad to the largest count of the batch (pad_sequence, or zeros(images, counts.max(), ...) with"
            " counts from the loader)"
            if fixed
            else "Keep boxes of all images in one list with the number of their image, or put images of like"
            " counts into a batch: one image decides for all.",
            confidence="likely" if fixed else "possible",
            text="rows counted when the tensor was first read" if largest else "boxes as annotated",
            launches=0,
        )
        made = _find_making(case) if found[0].what == _FROM_LOADER else []
        finding = put_at(finding, made) if made else finding
        yield without_cost(finding, "what empty rows cost in the operators that follow is not told apart")


def _find_making(case: LineCase) -> list[dict[str, Any]]:
    """Where the loader's collate function makes a tensor that is filled up."""
    rows = [row for row in case.summary.loader.transforms if row.kind == "collate" and row.origin]
    function, _, place = (rows[0].origin or "").rpartition(" ") if rows else ("", "", "")
    name, file = function.rpartition(".")[2], place.rpartition(":")[0]
    calls = (case.facts.get("padded_boxes") or {}).get("calls", ())
    return [one for one in calls if one["function"] == name and one["file"] == file][:1]


def _count_rows(found: Sequence[CensusPlace], case: LineCase) -> tuple[float, float | None, int | None, int]:
    """Rows and boxes per step, boxes of the fullest image, and how many an image could have."""
    shapes = [list(map(int, row.facts["shape"].split("x"))) for row in found]
    rows = sum(shape[0] * shape[1] * row.count for shape, row in zip(shapes, found, strict=True))
    capacity = max(shape[1] for shape in shapes)
    if all("boxes" in row.facts for row in found):
        boxes = sum(int(row.facts["boxes"]) * row.count for row in found)
        return rows, boxes, max(int(row.facts["largest"]) for row in found), capacity
    known = case.summary.content.boxes_per_image
    images = sum(shape[0] * row.count for shape, row in zip(shapes, found, strict=True))
    return rows, None if known is None else known * images, None, capacity


PART = AdviceRule("padded_boxes", 105, lines=find_lines)
