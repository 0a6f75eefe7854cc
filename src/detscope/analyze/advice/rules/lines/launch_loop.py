"""Tiny operators in a Python loop: each is a launch of its own."""

from __future__ import annotations

from collections.abc import Iterable

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.advice.rules.detectors.average_of_weights import find_lines as find_averages
from detscope.analyze.advice.rules.lines.waits._reads import is_written, name_place, total
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.census import CensusPlace
from detscope.analyze.findings.finding import Finding

NAME = "launch_loop"
LEAST_TURNS = 8  # of one operator at a line within one call: a loop
LEAST_IN_CALL = 50  # operators of such lines within one call of the function
LEAST_IN_LOOP = 10  # the same, where a loop is written around them
SMALL_BYTES = 256 * 1024  # that an operator makes: more of it keeps a device busy
# a loop over layers is a network: its operators are not tiny, and cannot be one
_LAYERS = (
    "conv", "mm", "batch_norm", "layer_norm", "group_norm", "rms_norm", "attention", "linear", "pool",
    "upsample", "interpolate", "lstm", "gru",
)  # fmt: skip


def find(case: LineCase) -> Iterable[Finding]:
    """By function: lines whose operators run many times in one call of it."""
    launches = case.places("launch", accept=lambda row: is_written(row) and not _is_torchs_optimizer(row))
    layers = {row.where for row in launches if any(word in row.what for word in _LAYERS)}
    looped = [row for row in launches if row.where not in layers and _is_repeated(row)]
    averages = {(one.file, one.function) for found in find_averages(case) for one in found.where}
    for rows in case.by_function(looped):
        in_call, launched, place = sum(row.in_call for row in rows), total(rows), rows[0].where
        least = LEAST_IN_LOOP if any(row.around == "loop" for row in rows) else LEAST_IN_CALL
        if in_call < least or (place.file, place.function) in averages:  # a rule of their own speaks
            continue
        if averages and all(row.what == "aten::copy_" for row in rows):  # what a function for one gave back
            continue
        turns, lines = max(row.in_call for row in rows), sorted({row.where.line for row in rows})
        yield case.make_finding(
            NAME,
            rows,
            f"{launched:g} launches per step are small operators repeated {turns} times in one call of"
            f" {name_place(rows[0])}",
            "one operator over all turns: stack what the loop goes over and compute on that; powers,"
            " indices and constants by torch.arange; lists of tensors by torch._foreach_*. What never"
            " changes, compute once",
            confidence="likely",
            launches=launched - sum(row.count / row.in_call for row in rows),
            text=f"{in_call} operators in one call, in line{'s' * (len(lines) > 1)}"
            f" {', '.join(map(str, lines[:6]))}, {sum(row.bytes for row in rows) / launched:,.0f} bytes each",
        )


def _is_repeated(row: CensusPlace) -> bool:
    return row.in_call >= LEAST_TURNS and 0 < row.bytes <= SMALL_BYTES * row.count


def _is_torchs_optimizer(row: CensusPlace) -> bool:
    """What torch's own do is laid at the line that calls them; others have lines of their own."""
    return ".step(" in row.code


PART = AdviceRule(NAME, 330, lines=find)
