"""Copies to the device for which the host waits: small ones one by one, constants, indices of the host."""

from __future__ import annotations

import re
from collections.abc import Iterable

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.advice.rules.lines.waits._reads import count_calls, is_written, name_place, total
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.census import CensusPlace
from detscope.analyze.findings.diffs import Code
from detscope.analyze.findings.finding import Finding

NAME = "pageable_feed"
LEAST = 4  # per step in a function; what could be made on the device is needless however often
_MADE = re.compile(
    r"torch\.(tensor|as_tensor|from_numpy|arange|linspace|zeros|ones|full|empty|eye|rand\w*)\("
)
_INDICES = "move the indices to the device once and index by that: implicit copies cannot be seen in the code"
_CONSTANTS = (
    "make constants once (register_buffer, or kept by device) and what calls of a step share once per step,"
    " or use plain numbers, which need no copy;"
    " torch.arange(..., device=device) and its like fill on the device"
)
_GENERATED = (
    "make it where it is used (device=x.device, also for torch.arange and torch.zeros), or, of numbers in the"
    " code, once and keep it (register_buffer)"
)
_TENSORS = (
    "DataLoader(pin_memory=True) and .to(device, non_blocking=True); small tensors in one, moved once (boxes"
    " of all images concatenated, split again on the device)"
)


def find(case: LineCase) -> Iterable[Finding]:
    """By function: a copy waits until the queue has run empty, unless it is told non_blocking."""
    for rows in case.by_function(case.places("feed", "index", accept=_blocks)):
        generated = [row for row in rows if row.facts.get("generated") == "True"]
        others = [row for row in rows if row not in generated]
        indices = [row for row in others if row.kind == "index"]
        constants = [row for row in others if row.kind == "feed" and _is_made_here(row)]
        moved = [row for row in others if row not in indices and row not in constants]
        if total(rows) < LEAST and total(generated) < 1:
            continue
        told = [
            f"{total(kind):g} {words}"
            for kind, words in (
                (indices, "by indexing with a tensor of the host"),
                (generated, "of what the host computes from sizes and constants alone"),
                (constants, "of numbers of the host"),
                (moved, "of tensors one by one"),
            )
            if kind
        ]
        changes = [
            words
            for kind, words in (
                (indices, _INDICES),
                (generated, _GENERATED),
                (constants, _CONSTANTS),
                (moved, _TENSORS),
            )
            if kind
        ]
        yield case.make_finding(
            NAME,
            rows,
            f"{total(rows):g} cop{'y' if total(rows) == 1 else 'ies'} to the device per step in"
            f" {name_place(rows[0])}, for each of which the host waits: {', '.join(told)}",
            "; ".join(changes),
            confidence="likely",
            waits=total(rows) - count_calls(indices),  # one copy of the indices per call is left
            text="torch waits for the stream after a copy to the device, unless it is told non_blocking",
            diff=case.write_diff(rows, _rewrite) if moved == rows else None,
        )


def _rewrite(code: Code) -> list[str] | None:
    """`.to(device)` that nobody waits for."""
    calls = code.find_calls("to")
    if not calls or any(len(one.args) != 1 or one.keywords for one in calls):
        return None
    return code.replace({one.args[0]: f"{code.text(one.args[0])}, non_blocking=True" for one in calls})


def _blocks(row: CensusPlace) -> bool:
    asked = "non_blocking" in row.code or row.facts.get("non_blocking") == "True"
    return is_written(row) and not asked


def _is_made_here(row: CensusPlace) -> bool:
    return row.what in ("tensor", "as_tensor") or bool(_MADE.search(row.code))


PART = AdviceRule(NAME, 320, lines=find)
