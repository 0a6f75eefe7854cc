"""Costs of all pairs of which few are used: blocks of one image, or the diagonal."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.advice.rules.lines.waits._reads import is_written, name_place, tell_times, total
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.census import CensusPlace
from detscope.analyze.findings.finding import Finding, estimate_device

NAME = "cost_over_all_images"


def find(case: LineCase) -> Iterable[Finding]:
    """By function; rows of the patterns `diagonal`, which follows pieces of a cost, and `pairs_diagonal`."""
    for rows in case.by_function(case.places("diagonal")):
        images = max(int(row.facts["images"]) for row in rows)
        wasted = 1 - 1 / images
        finding = case.make_finding(
            NAME,
            rows,
            f"{wasted:.0%} of the costs that {name_place(rows[0])} takes blocks of are never looked at: each"
            f" of {images} images is compared with the boxes of all {images}",
            "compare images with their own boxes: pad boxes to the largest count of the batch and compute"
            " [images, queries, most boxes] at once, or image by image where counts differ much",
            text=_tell_making(rows, "shape"),
        )
        yield _with_cost(case, finding, rows, wasted)
    for rows in case.by_function(case.places("pairs")):
        sizes = [(int(row.facts["rows"]), row.count) for row in rows]
        wasted = 1 - sum(size * count for size, count in sizes) / sum(
            size**2 * count for size, count in sizes
        )
        finding = case.make_finding(
            NAME,
            rows,
            f"{wasted:.0%} of the pairs that are compared for {name_place(rows[0])} are never looked at: of"
            f" {max(size for size, _ in sizes)} rows with each other only the diagonal is taken",
            "compare row with row: the same formula without a dimension for the other side ([:, None]) gives"
            " the diagonal itself; for boxes an elementwise IoU",
            confidence="likely",  # it could be read whole later on
            text=_tell_making(rows, "rows"),
        )
        yield _with_cost(case, finding, rows, wasted)


def _tell_making(rows: list[CensusPlace], size: str) -> str:
    return (
        f"{tell_times(total(rows))} per step, {_list_facts(rows, size)}, computed at"
        f" {_list_facts(rows, 'made')}; the time is that share of all operators of that function"
    )


def _with_cost(case: LineCase, finding: Finding, rows: list[CensusPlace], wasted: float) -> Finding:
    """What the needless part costs, and where it is computed."""
    made = _find_making(case, rows)
    lines = [row.where for row in made if _is_made_at(row, rows)]
    return msgspec.structs.replace(
        finding,
        where=tuple(dict.fromkeys([*finding.where, *lines])),
        cost_ms=wasted * sum(row.host_ms for row in made) if made else None,
        cost_low_ms=wasted * sum(row.host_low_ms for row in made) if made else None,
        cost_high_ms=wasted * sum(row.host_high_ms for row in made) if made else None,
        on_device=estimate_device(0.0, 0.0, sum(row.bytes for row in rows)),
    )


def _find_making(case: LineCase, rows: list[CensusPlace]) -> list[CensusPlace]:
    """Operators of the function that computes the cost; what that calls is not among them."""
    launches = case.places("launch", accept=is_written)
    functions = {(row.where.file, row.where.function) for row in launches if _is_made_at(row, rows)}
    return [row for row in launches if (row.where.file, row.where.function) in functions]


def _list_facts(rows: list[CensusPlace], key: str) -> str:
    return ", ".join(sorted({row.facts[key] for row in rows})[:3])


def _is_made_at(row: CensusPlace, rows: list[CensusPlace]) -> bool:
    return f"{row.where.file}:{row.where.line}" in {one.facts["made"] for one in rows}


PART = AdviceRule(NAME, 342, lines=find)
