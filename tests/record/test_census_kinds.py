"""Every way in which code makes the host wait for the device, in one line each, and what is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from census_lines import CASES, Given
from detscope.record.census.operators import FEED, INDEX, WAITS
from detscope.record.census.watch import Census


def count_kinds(code: Callable[[Given], object]) -> dict[str, int]:
    """What a step of this code alone is counted as; launches and what patterns add are left out."""
    given, census = Given(), Census(real_device=False)
    census.begin_step()
    try:
        code(given)
    finally:
        rows = census.end_step(0)
    assert census.fault is None
    found: Counter[str] = Counter()
    for row in rows:
        found[row[2]] += row[10] * ("non_blocking=True" not in row[-1])
    return {kind: count for kind, count in found.items() if count and kind in (*WAITS, FEED, INDEX)}


@pytest.mark.parametrize("name", CASES)
def test_a_line_is_counted_as_what_it_does_to_a_device(name):
    code, expected = CASES[name]
    assert count_kinds(code) == expected


WITH_GRADIENTS = ("a mask, backward", "norm that has to be finite", "a scaler's infinities", "detached")


@pytest.mark.parametrize("name", [name for name in CASES if name not in WITH_GRADIENTS])
def test_it_is_counted_alike_where_nothing_is_recorded_for_gradients(name):
    code, expected = CASES[name]

    def infer(given: Given) -> None:
        with torch.inference_mode():
            code(given)

    assert count_kinds(infer) == expected
