"""Findings as data: stable ids, one per rule and function, an order that helps, a few thousand bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator

from counted_runs import CHECK_RULE, place, rules, write_counted
from detscope.analyze.advice.case import Advice, AdviceRule
from detscope.analyze.compare.runs import compare_runs
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.census import MOST_PLACES
from detscope.analyze.findings.collect import add_advice
from detscope.analyze.findings.finding import Finding, FindingEvidence, estimate_device, make_id
from detscope.analyze.findings.listing import MOST_BYTES, dump_line, list_findings
from detscope.analyze.schema import make_schema
from detscope.analyze.step.beside import CodePlace
from detscope.analyze.summary import RunSummary, summarize
from detscope.runs.reader import load_run
from detscope.runs.standard_json import as_standard_json
from schema_check import check_summary


@pytest.fixture(autouse=True)
def check_rule() -> Iterator[None]:
    with rules(CHECK_RULE):
        yield


def at_lines(folder: Path) -> list[Finding]:
    return [one for one in summarize(folder).findings if one.rule == "planted_check"]


def finding(name: str, waits: float = 1.0, cost_ms: float | None = 0.001) -> Finding:
    where = (CodePlace(function=name, file="loss.py", line=3),)
    return Finding(
        id=make_id("planted_check", where),
        rule="planted_check",
        claim=f"{name} waits",
        where=where,
        evidence=FindingEvidence(table="census", rows=3, steps=(3, 4, 5), text=""),
        cost_ms=cost_ms,
        on_device=estimate_device(waits, 0, 0),
        confidence="certain",
        change="wait no more",
    )


def test_an_id_stays_when_lines_move_and_differs_between_functions(tmp_path: Path) -> None:
    first = at_lines(write_counted(tmp_path, [place(line=7), place(function="log", line=20)]))
    moved = at_lines(write_counted(tmp_path, [place(line=70), place(function="log", line=90)]))
    assert [one.id for one in first] == [one.id for one in moved]
    assert len({one.id for one in first}) == 2
    assert all(one.id.startswith("planted_check-") for one in first)


def test_a_comprehension_is_its_function_whichever_python_runs_it() -> None:
    names = ("log", "log.<locals>.<dictcomp>", "log.<locals>.<genexpr>", "log.<locals>.<listcomp>")
    assert len({finding(name).id for name in names}) == 1
    assert finding("log.<locals>.inner").id != finding("log").id


def test_lines_of_one_function_are_one_finding_with_the_costs_of_all(tmp_path: Path) -> None:
    (found,) = at_lines(write_counted(tmp_path, [place(line=7, count=11), place(line=9, count=12)]))
    assert [one.line for one in found.where] == [9, 7]
    assert found.on_device is not None and found.on_device.waits == 23
    assert found.cost_ms == pytest.approx(0.04)
    assert found.evidence.rows == 6 and found.evidence.steps == (3, 4, 5)


def test_a_rule_that_speaks_twice_of_a_function_makes_one_finding(tmp_path: Path) -> None:
    def find_each(case: LineCase) -> Iterator[Finding]:
        for row in case.places("read"):
            yield case.make_finding("another name", [row], f"line {row.where.line}", "do less")

    folder = write_counted(tmp_path, [place(line=7, count=2), place(line=9, count=5)])
    with rules(AdviceRule("each", 5, lines=find_each)):
        (found,) = [one for one in summarize(folder).findings if one.rule == "each"]
    assert found.claim == "line 9" and found.id == make_id("each", found.where)
    assert found.on_device is not None and found.on_device.waits == 7
    assert {one.line for one in found.where} == {7, 9}


def test_lines_come_by_their_cost_on_a_device_and_small_ones_behind_advice() -> None:
    small = finding("small", waits=0)
    advice = [
        Advice(rule="workers", about="time", title="more workers", gain_ms=5.0),
        Advice(rule="planted_check", about="time", title="the same without a line", gain_ms=9.0),
        Advice(rule="batch", about="memory", title="smaller batch", saves_bytes=10),
        Advice(rule="channels", about="memory", title="nothing to speak of", worth=False),
    ]
    ordered = add_advice([small, finding("few"), finding("many", waits=30)], advice, "host", 20.0)
    assert [one.claim for one in ordered] == [
        "many waits",
        "few waits",
        "more workers",
        "small waits",
        "smaller batch",
    ]
    assert ordered[-1].rule == "memory.batch" and ordered[-1].saves_bytes == 10
    unknown = msgspec.structs.replace(small, on_device=None)
    assert add_advice([unknown], advice, "host", 20.0)[0] == unknown  # what is not known is not small
    costly = finding("costly", waits=0, cost_ms=0.2)  # 1 % of the step here
    assert add_advice([costly], advice, "host", 20.0)[0] == costly


def many_functions(folder: Path, functions: int = 40) -> RunSummary:
    rows = [
        place(f"package/module_{number}.py", number + 1, f"check_{number}", count=number + 1, code="x" * 90)
        for number in range(functions)
    ]
    return summarize(write_counted(folder, rows))


def test_ten_findings_fit_and_the_rest_is_counted_with_a_command(tmp_path: Path) -> None:
    summary = many_functions(tmp_path)
    told = list_findings(summary, "a2ec")
    assert len(dump_line(told)) <= MOST_BYTES
    assert 5 <= len(told.findings) <= 10
    assert told.findings == summary.findings[: len(told.findings)]  # whole, and the largest
    assert told.left_out == len(summary.findings) - len(told.findings)
    assert told.see_all == f"detscope why a2ec --limit {len(summary.findings)}"
    everything = list_findings(summary, "a2ec", 100, None)
    assert everything.left_out == 0 and everything.see_all is None


def test_what_is_listed_is_as_the_schema_says(tmp_path: Path) -> None:
    summary = many_functions(tmp_path, 3)
    told = list_findings(summary, "a2ec")
    Draft202012Validator(make_schema("findings")).validate(json.loads(dump_line(told)))
    check_summary(summary)


def test_places_stay_whole_in_python_and_json_says_how_many_it_leaves_out(tmp_path: Path) -> None:
    summary = many_functions(tmp_path, MOST_PLACES + 7)
    assert summary.census is not None and len(summary.census.places) == MOST_PLACES + 7
    told = as_standard_json(summary)
    assert isinstance(told, dict)
    assert len(told["census"]["places"]) == MOST_PLACES and told["census"]["left_out"] == 7
    check_summary(summary)


def test_a_finding_lists_a_few_lines_and_counts_the_others(tmp_path: Path) -> None:
    (found,) = at_lines(write_counted(tmp_path, [place(line=line) for line in range(1, 31)]))
    assert len(found.where) + found.more_places == 30 and len(found.where) < 30


def test_a_run_without_a_census_says_how_to_make_one(tmp_path: Path) -> None:
    told = list_findings(summarize(write_counted(tmp_path, [], census=None)), "a2ec")
    assert (told.waits, told.launches, told.steps) == (None, None, ())
    assert told.make_census is not None and told.make_census.startswith("detscope run --census ")
    assert told.make_census.endswith("train.py")


def test_a_mended_line_is_gone_in_a_comparison_and_its_waits_are_less(tmp_path: Path) -> None:
    check, log = place(count=22), place(function="log", line=40, count=2)
    before, after, uncounted = (
        load_run(write_counted(tmp_path, rows))
        for rows in ([check, log], [log, place(function="new", line=50)], [])
    )
    (found,) = compare_runs(before, [after]).comparisons
    assert found.findings is not None
    (gone,), (new,) = found.findings.gone, found.findings.new
    assert gone.id == make_id("planted_check", [CodePlace(function="check_boxes", file="loss.py", line=1)])
    assert "1 times" in new.claim
    waits = found.name_figures()["census.waits"]
    assert (waits.before, waits.after, waits.verdict) == (24, 3, "less")
    (without,) = compare_runs(before, [uncounted]).comparisons
    assert without.findings is None and without.census == ()  # what was not counted is not gone
