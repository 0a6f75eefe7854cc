"""An agent asks `detscope mcp` about recorded runs; answers are bounded, and those of the verbs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_client import Call, ask, converse, one_server, refusal

from compared_runs import make_run
from detscope.analyze.compare.runs import compare_runs
from detscope.analyze.drawing import report_data
from detscope.analyze.summary import summarize
from detscope.report.model import Chart, Pictures
from detscope.report.sections import make_sections
from detscope.runs.reader import load_run

OLD_RUNS = Path(__file__).parents[1] / "old_runs"
KINDS = ("eval", "import", "infer", "ranks", "script", "train")
TOOLS = ["list_runs", "summary", "findings", "section", "compare", "definitions"]
OUTSIDE = [
    "/etc",
    "..",
    ".",
    "../secret",
    "a/b",
    "C:\\runs",
    "C:train",
    "\\\\host\\x",
    "a\0b",
    "elsewhere",
]


def look_at(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything that lies there, with sizes and times of change."""
    found = {str(path): path.lstat() for path in (folder, *folder.rglob("*"))}
    return {name: (told.st_size, told.st_mtime_ns) for name, told in found.items()}


def pages(runs: Path, work: Path, call: Call, limit: int) -> list[dict[str, Any]]:
    """All pages of an answer, so many rows each."""
    name, arguments = call
    (first,) = ask(runs, work, (name, {**arguments, "limit": 1}))
    starts = range(0, first["total"], limit)
    found = ask(runs, work, *((name, {**arguments, "offset": at, "limit": limit}) for at in starts))
    assert [page["left_out"] for page in found] == [max(0, first["total"] - at - limit) for at in starts]
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Recorded runs of every kind, and two that differ by 5 ms of one module, and a server that is asked."""
    folder = tmp_path_factory.mktemp("asked") / "runs"
    for kind in KINDS:
        shutil.copytree(OLD_RUNS / kind, folder / kind)
    for seed, slower in ((1, {}), (2, {"rpn": 5.0})):
        made = make_run(folder, seed, slower, info={"model": {"name": "small"}}).folder
        made.rename(folder / f"20261115T10150{seed}Z-train-small-000{seed}")
    with one_server(folder, tmp_path_factory.mktemp("work")):
        yield folder


@pytest.fixture(scope="module")
def untouched(runs: Path) -> Any:
    """Whatever is asked, nothing in the folder is written, made or removed."""
    before = look_at(runs)
    yield
    assert look_at(runs) == before


def test_tools_are_listed_with_what_they_take_and_answer(runs, untouched, tmp_path):
    tools = converse(runs, tmp_path, []).tools
    assert list(tools) == TOOLS
    for tool in tools.values():
        assert tool.annotations.read_only_hint
        assert tool.input_schema["type"] == tool.output_schema["type"] == "object"
        described = {**tool.input_schema["properties"], **tool.output_schema["properties"]}
        assert described["cut"]["description"]
    assert "before" in tools["compare"].input_schema["properties"]["base"]["description"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_run_can_be_asked_for_everything_without_torch(runs, untouched, tmp_path, kind):
    made = make_sections(report_data(load_run(runs / kind)))[0]
    sections = [section.id for section in made]
    calls = [
        ("summary", {"run": kind}),
        ("findings", {"run": kind}),
        ("compare", {"base": kind, "other": kind}),
    ]
    calls += [("section", {"run": kind, "section": name}) for name in sections]
    conversation = converse(runs, tmp_path, calls)
    told = conversation.check(calls)
    assert [head["name"] for head in told[0]["sections"]] == sections
    drawn = {one.id for one in made if all(isinstance(block, Chart | Pictures) for block in one.blocks)}
    assert {page["section"] for page in told[3:] if not page["total"]} == drawn
    for answer in conversation.answers:  # clients that know no structured content read the same
        assert json.loads(answer.content[0].text) == answer.structured_content


def test_the_summary_has_the_figures_of_show(runs, untouched, tmp_path):
    (told,) = ask(runs, tmp_path, ("summary", {"run": "train"}))
    shown = summarize(runs / "train")
    assert told["run"] == "train"
    assert told["verdict"] == shown.verdict
    assert told["step_ms"]["p50"] == pytest.approx(shown.step_ms.p50, rel=1e-4)
    assert [(row["name"], row["ms"]) for row in told["phases"]] == [
        (phase.name, pytest.approx(phase.ms, rel=1e-4)) for phase in shown.phases
    ]


def test_findings_are_those_of_show_and_can_be_asked_for_by_rule(runs, untouched, tmp_path):
    shown = summarize(runs / "train").findings
    assert shown
    first = {"run": "train", "rule": shown[0].rule, "limit": 1}
    told, one = ask(runs, tmp_path, ("findings", {"run": "train"}), ("findings", first))
    assert [row["id"] for row in told["findings"]] == [row.id for row in shown][: len(told["findings"])]
    assert told["total"] == len(shown)
    assert [(row["claim"], row["change"]) for row in one["findings"]] == [(shown[0].claim, shown[0].change)]


def test_runs_are_listed_newest_first_and_filtered(runs, untouched, tmp_path):
    found, small, one = ask(
        runs,
        tmp_path,
        ("list_runs", {}),
        ("list_runs", {"model": "small", "sort": "ms"}),
        ("list_runs", {"limit": 1}),
    )
    assert {run["name"] for run in found["runs"]} >= set(KINDS)
    assert [run["id"] for run in small["runs"]] == ["0001", "0002"]
    assert (one["total"], one["left_out"], len(one["runs"])) == (8, 7, 1)


def test_pages_of_a_section_are_all_its_rows(runs, untouched, tmp_path):
    told = pages(runs, tmp_path, ("section", {"run": "train", "section": "modules"}), 10)
    names = {row[0] for page in told for table in page["tables"] for row in table["rows"]}
    assert {module.path for module in summarize(runs / "train").modules} <= names


def test_a_comparison_names_what_changed_first(runs, untouched, tmp_path):
    names = {"base": "0001", "other": "0002"}
    told, modules = ask(runs, tmp_path, ("compare", names), ("compare", {**names, "figures": "module."}))
    before, after = (load_run(next(runs.glob(f"*-{end}"))) for end in names.values())
    (shown,) = compare_runs(before, [after]).comparisons
    assert told["verdict"] == shown.verdict
    by_name = {row["name"]: row for row in told["changes"]}
    assert by_name["module.rpn"]["verdict"] == "slower"
    assert by_name["module.rpn"]["difference"] == pytest.approx(5.0, abs=1.0)
    assert modules["changes"][0]["name"] == "module.rpn"
    assert all(row["name"].startswith("module.") for row in modules["changes"])


def test_a_word_finds_its_definitions(runs, untouched, tmp_path):
    found, none = ask(
        runs, tmp_path, ("definitions", {"name": "padding_share"}), ("definitions", {"name": "zzz"})
    )
    assert "padding" in next(row for row in found["definitions"] if row["name"] == "padding_share")["text"]
    assert "memory" in none["sections"]
    assert none["total"] == 0


def test_runs_outside_of_the_folder_are_refused(runs, untouched, tmp_path):
    folder = tmp_path / "runs"
    shutil.copytree(runs / "train", folder / "train")
    (folder / "elsewhere").symlink_to(runs / "train")
    questions: list[Callable[[str], Call]] = [
        lambda name: ("summary", {"run": name}),
        lambda name: ("findings", {"run": name}),
        lambda name: ("section", {"run": name, "section": "step"}),
        lambda name: ("compare", {"base": "train", "other": name}),
        lambda name: ("compare", {"base": name, "other": "train"}),
    ]
    asked = [(name, question(name)) for name in OUTSIDE for question in questions]
    answers = converse(folder, tmp_path, [call for _, call in asked]).answers
    for (name, _), answer in zip(asked, answers, strict=True):
        assert answer.is_error, name
        error, hint = answer.content[0].text.splitlines()
        assert error == f"error: {name!r} leads out of the folder of runs"
        assert hint.startswith("hint: give a run's id")


def test_a_link_inside_of_a_run_that_leads_out_is_refused(runs, untouched, tmp_path):
    folder = tmp_path / "runs"
    shutil.copytree(runs / "train", folder / "train")
    shutil.copytree(runs / "train", folder / "whole")
    (folder / "train" / "steps.parquet").unlink()
    (folder / "train" / "steps.parquet").symlink_to(runs / "train" / "steps.parquet")
    (folder / "latest").symlink_to("whole")
    assert (
        refusal(folder, tmp_path, ("summary", {"run": "train"}))[0]
        == "error: 'train' leads out of the folder of runs"
    )
    listed, latest = ask(folder, tmp_path, ("list_runs", {}), ("summary", {}))
    assert [run["name"] for run in listed["runs"]] == ["whole"]
    assert latest["run"] == "whole"


@pytest.mark.parametrize("file", ["run.json", "steps.parquet"])
def test_a_damaged_run_is_an_error_of_one_line_and_others_are_still_told(runs, tmp_path, file):
    folder = tmp_path / "runs"
    for name in ("train", "infer"):
        shutil.copytree(runs / name, folder / name)
    (folder / "train" / file).write_bytes(b"\x00{ no \x1b[31m table")
    calls = [("summary", {"run": "train"}), ("summary", {"run": "infer"}), ("list_runs", {})]
    broken, whole, listed = converse(folder, tmp_path, calls).answers
    lines = broken.content[0].text.splitlines()
    assert broken.is_error
    assert len(lines) == 2 and lines[0].startswith("error: ") and f"{file} is damaged" in lines[0]
    assert lines[1].startswith("hint: ")
    assert not whole.is_error
    assert listed.structured_content["total"] == 2


def test_questions_that_make_no_sense_are_answered_by_a_line_and_a_hint(runs, untouched, tmp_path):
    asked: list[tuple[Call, str]] = [
        (("summary", {"run": "nothing-like-it"}), "no run named 'nothing-like-it'"),
        (("summary", {"run": 5}), "Expected `str`, got `int`"),
        (("summary", {"runs": "train"}), "unknown field `runs`"),
        (("section", {"run": "train"}), "missing required field `section`"),
        (("section", {"run": "train", "section": "modulse"}), "no such section"),
        (("section", {"run": "train", "section": "all"}), "one section at a time"),
        (("list_runs", {"offset": -1}), "Expected `int` >= 0"),
        (("list_runs", {"sort": "beauty"}), "'beauty' is not one of"),
        (("write", {}), "no tool named 'write'"),
    ]
    answers = converse(runs, tmp_path, [call for call, _ in asked]).answers
    for (_, words), answer in zip(asked, answers, strict=True):
        assert answer.is_error, words
        error, hint = answer.content[0].text.splitlines()
        assert words in error
        assert hint.startswith("hint: ")


def test_hundreds_of_runs_are_told_page_by_page(runs, untouched, tmp_path):
    folder = tmp_path / "runs"
    (folder / "kept").mkdir(parents=True)
    whole = json.loads((runs / "train" / "run.json").read_text())
    for number in range(300):
        run = folder / f"20261115T{number:06}Z-train-a_detector_of_a_long_name-{number:04x}"
        run.mkdir()
        (run / "run.json").write_text(json.dumps(whole))
    before = look_at(folder)
    starts = (0, 100, 290, 500)
    expected = sorted((run.name for run in folder.iterdir() if run.name != "kept"), reverse=True)
    found = ask(folder, tmp_path, *(("list_runs", {"offset": at}) for at in starts))
    for start, told in zip(starts, found, strict=True):
        names = [run["name"] for run in told["runs"]]
        assert len(names) >= 10 or start >= 290
        assert names == expected[start : start + len(names)]
        assert (told["total"], told["left_out"]) == (300, max(0, 300 - start - len(names)))
    assert look_at(folder) == before
    assert len(refusal(folder, tmp_path, ("summary", {"run": "2026"}))[0]) < 1100  # all of them fit


def test_where_there_is_no_folder_every_question_says_so(tmp_path):
    assert refusal(tmp_path / "none", tmp_path, ("list_runs", {}))[0].endswith("none is not a folder")
    assert not os.path.lexists(tmp_path / "none")
