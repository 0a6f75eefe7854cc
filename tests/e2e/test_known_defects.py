"""The table of `python -m bench known_defects`: what counts as found. No version is fetched here."""

from __future__ import annotations

import pytest
from bench.known_defects import judge_pair
from bench.known_pairs import OF_THE_ISSUE, PAIRS, KnownDefect, VersionPair

DEFECT = KnownDefect("slow_loop", "library/average.py", "Average.update", "one tensor at a time")
PAIR = VersionPair("library", "1.0", "1.1", "a training", (DEFECT,))


def say(rule="slow_loop", file="library/average.py", function="Average.update", line=7):
    return [{"rule": rule, "where": [{"file": file, "function": function, "line": line}]}]


@pytest.mark.parametrize(
    ("older", "newer", "word"),
    [
        (say(), [], "found"),
        (say(), say(file="library/other.py"), "found"),
        (say(), say(rule="another"), "found"),
        (say(function="Average.update.<locals>.<listcomp>"), [], "found"),
        (say(), say(line=9), "not silent"),
        ([], [], "missed"),
        ([], say(), "missed"),
        (say(file="library/other.py"), [], "missed"),
        (say(rule="another"), [], "missed"),
        ([{"rule": "slow_loop", "where": []}], [], "missed"),
    ],
)
def test_a_defect_is_found_where_its_rule_speaks_of_the_older_version_alone(older, newer, word):
    [verdict] = judge_pair(PAIR, older, newer)
    assert verdict.word == word
    assert verdict.older_lines == ((7,) if word in ("found", "not silent") else ())


def test_the_pairs_of_the_issue_are_there():
    told = {
        (pair.package, pair.older, pair.newer): len(pair.defects)
        for pair in PAIRS
        if pair.part == OF_THE_ISSUE
    }
    assert told == {
        ("ultralytics", "8.4.96", "8.4.108"): 1,
        ("ultralytics", "8.4.150", "8.4.156"): 2,
        ("rfdetr", "1.9.0", "1.9.4"): 1,
    }
