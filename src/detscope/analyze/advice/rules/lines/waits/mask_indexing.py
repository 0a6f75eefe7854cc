"""Selections whose size the device alone knows: masks, nonzero, unique."""

from __future__ import annotations

from collections.abc import Iterable

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.advice.rules.lines.waits._reads import is_written, name_place, total
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.finding import Finding

NAME = "mask_indexing"
LEAST = 2  # per step in a function; one alone is not worth a word
_AGAIN = "mask_again"  # rows of the pattern of that name


def find(case: LineCase) -> Iterable[Finding]:
    """By function; where one mask is used again and again, all but its first count as needless."""
    sizes = case.places("size", accept=lambda row: is_written(row) and not row.what.endswith("::nms"))
    for rows in case.by_function(sizes):
        waits, place = total(rows), rows[0].where
        if waits < LEAST:
            continue
        again = sum(
            row.count
            for row in case.places(_AGAIN)
            if (row.where.file, row.where.function) == (place.file, place.function)
        )
        change = (
            "index = mask.nonzero(as_tuple=True) once, then tensor[index] in the place of tensor[mask]; or no"
            " selection at all: torch.where(mask, value, 0), or the mask as a weight of the sum"
            if again
            else "keep the size: torch.where(mask, value, 0), the mask as a weight of the sum, or the topk of"
            " a fixed number; where the host knows the count, index by numbers"
        )
        yield case.make_finding(
            NAME,
            rows,
            f"{waits:g} selections per step in {name_place(rows[0])} have a size that the device alone knows"
            + (f"; {again:g} of them use a mask that had been counted before" if again else ""),
            change,
            confidence="certain" if again else "possible",
            waits=again or None,
            text=", ".join(sorted({f"{row.what} in line {row.where.line}" for row in rows})[:6]),
        )


PART = AdviceRule(NAME, 310, lines=find)
