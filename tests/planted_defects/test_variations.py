"""The same defects in other words: what is named is what happens, not how it is spelled."""

from __future__ import annotations

import re

import pytest

from planted_defects.planted_runs import HERE

SCRIPTS = ("varied_reads.py", "varied_costs.py")


@pytest.mark.parametrize("script", SCRIPTS)
def test_variations_of_a_defect_are_named_at_their_lines_and_what_looks_alike_is_not(script, record):
    found = {
        (one.rule, place.line)
        for one in record(script).findings
        for place in one.where[:1]
        if place.file == script
    }
    listed = {(one.rule, place.line) for one in record(script).findings for place in one.where}
    marks = [
        (mark, (rule, number))
        for number, line in enumerate((HERE / script).read_text().splitlines(), 1)
        for mark, rule in re.findall(r"  # ([=!]) (\w+)$", line)
    ]
    assert len(marks) > 10
    assert [what for mark, what in marks if mark == "=" and what not in found] == []
    assert [what for mark, what in marks if mark == "!" and what in listed] == []
