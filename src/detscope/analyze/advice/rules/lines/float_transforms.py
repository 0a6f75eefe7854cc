"""Images that are made floats before they are resized, flipped and cropped: four times the bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.advice.rules.lines._placed import put_at
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.finding import Finding
from detscope.analyze.step.transforms import TransformFigures

LEAST_SHARE = 0.05  # of a worker's time, in what comes after
_LOADING = ("worker", "loop")
_TO_FLOAT = ("ToTensor", "ToDtype", "ConvertImageDtype", "ConvertDtype", "ToFloat")
_GEOMETRIC = (
    "resize", "crop", "flip", "affine", "rotate", "rotation", "perspective", "zoomout", "scalejitter", "pad",
    "letterbox", "mosaic", "elastic", "shortestsize",
)  # fmt: skip


def find_lines(case: LineCase) -> Iterable[Finding]:
    """The first conversion of a pipeline of transforms; then functions that convert first."""
    yield from _find_in_pipeline(case)
    for function in (case.facts.get("float_transforms") or {}).get("functions", ()):
        yield from _find_in_function(case, function)


def _find_in_pipeline(case: LineCase) -> Iterable[Finding]:
    """The first conversion, and what is done to floats after it."""
    loader = case.summary.loader
    known = [row for row in loader.transforms if row.kind == "transform" and row.position is not None]
    first = min(
        (row for row in known if _named(row) in _TO_FLOAT), key=lambda row: row.position or 0, default=None
    )
    if first is None:
        return
    later = [row for row in known if row.inside == first.inside and _comes_after(row, first)]
    calls = [
        one
        for one in (case.facts.get("float_transforms") or {}).get("calls", ())
        if one["called"] == _named(first)
    ]
    if sum(row.share or 0.0 for row in later) < LEAST_SHARE or not calls or _is_of_bytes(calls):
        return
    names = ", ".join(row.name for row in sorted(later, key=lambda row: -row.ms_per_image)[:4])
    yield _tell(case, later, calls[0], f"{first.name} makes images floats before {names}, which then take")


def _find_in_function(case: LineCase, function: Mapping[str, Any]) -> Iterable[Finding]:
    """One that a loader runs: what it calls is seen by a timer, else its own time is all that is known."""
    rows = [row for row in case.summary.loader.transforms if row.where in _LOADING]
    ran = [row for row in rows if _named(row) == function["function"]]
    later = [row for row in rows if row.kind == "sampled" and row.name in function["moved"]]
    spent = later or ran
    if not ran or sum(row.share or 0.0 for row in spent) < LEAST_SHARE:
        return
    names = ", ".join(function["moved"][:4])
    what = f"{function['called']} in {function['function']} makes images floats before {names}"
    yield _tell(case, spent, function, f"{what}, which then take" if later else f"{what}; the function takes")


def _tell(case: LineCase, rows: Sequence[TransformFigures], place: Mapping[str, Any], claim: str) -> Finding:
    spent, share = sum(row.ms_per_image for row in rows), sum(row.share or 0.0 for row in rows)
    finding = case.make_finding(
        PART.name,
        (),
        f"{claim} {spent:.3g} ms per image, {share:.0%} of what"
        f" {'a worker' if rows[0].where == 'worker' else 'the loop'} does.",
        f"Keep images uint8 until the last of these: move {place['called']} to the end of the pipeline, or to"
        " the device (torchvision.transforms.v2 resizes and flips bytes).",
        confidence="likely",
        text="table transforms, in the order of the pipeline; how much faster bytes are is not measured",
    )
    images = 1 if case.summary.batch_size is None else case.summary.batch_size
    return put_at(msgspec.structs.replace(finding, cost_ms=spent * images, on_device=None), [place])


def _named(row: TransformFigures) -> str:
    return row.name.partition(" ")[0]


def _comes_after(row: TransformFigures, first: TransformFigures) -> bool:
    fits = any(word in row.name.lower() for word in _GEOMETRIC)
    return fits and row.where == first.where and (row.position or 0) > (first.position or 0)


def _is_of_bytes(calls: Sequence[dict[str, str]]) -> bool:
    return "uint8" in calls[0]["code"]


PART = AdviceRule("float_transforms", 108, lines=find_lines)
