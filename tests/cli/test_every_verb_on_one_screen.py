"""Every verb that prints figures ends on one screen of 80 x 25, and says where the rest is."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from compared_runs import make_run
from detscope.analyze.compare.trying import TryResult
from detscope.analyze.sweep.tuning import TuneResult
from detscope.cli.output import SCREEN_LINES
from detscope.report.model import Section
from detscope.report.render.terminal import print_sections
from detscope.report.verbs.trying import try_sections
from detscope.report.verbs.tuning import tuning_sections
from made_figures import made_figure
from pseudo_terminal import COLUMNS, run_on_terminal
from swept_store import make_store

MOST_LINES = 24
OLD_RUNS = Path(__file__).parents[1] / "old_runs"
LONG = "a sentence that is longer than a terminal is wide, and then goes on about what it has not said yet"


def check_screen(lines: list[str], *words: str) -> None:
    """It fits, and it has what one must not lose."""
    text = "\n".join(lines)
    assert len(lines) <= MOST_LINES, text
    assert max(map(len, lines)) <= COLUMNS, text
    for word in words:
        assert word in text, (word, text)


def test_compare_ends_with_the_verdict_the_step_and_its_gate_on_one_screen(tmp_path: Path) -> None:
    facts = {f"fact_{index}": index for index in range(30)}
    before = make_run(tmp_path, 1, info={"environment": facts})
    slower = {"roi_heads.box_head": 9.0, "rpn": -6.0, "backbone": 3.0}
    after = make_run(tmp_path, 2, slower, info={"environment": dict.fromkeys(facts, -1), "precision": "bf16"})
    args = ["compare", str(before.folder), str(after.folder), "--fail-if", "step_p50 > +1%"]
    lines = run_on_terminal(args, tmp_path, ends_with=7)
    check_screen(lines, "step p50", "gate", "failed", "| less", "What differs (first 3 of")


def test_a_sweep_ends_with_the_fastest_its_failures_and_what_to_type_next(tmp_path: Path) -> None:
    make_store(tmp_path / "nightly.db")
    lines = run_on_terminal(["sweep", "status", "nightly.db"], tmp_path)
    fastest = "resnet18-p0 is fastest: 100.0 images/s"
    check_screen(lines, fastest, "1 failed", "oom_host", "detscope fit nightly.db", "has every trial")


def test_several_ranks_end_on_one_screen_and_name_their_section(tmp_path: Path) -> None:
    check_screen(
        run_on_terminal(["show", str(OLD_RUNS / "ranks")], tmp_path), "2 ranks", "images/s", "ranks,"
    )


def test_many_files_are_imported_as_one_line_each(tmp_path: Path) -> None:
    for number in range(30):
        events = [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 10 * step, "dur": 5, "pid": 1, "tid": 1}
            for step in range(1, 4)
        ]
        (tmp_path / f"trace{number}.json").write_text(json.dumps({"traceEvents": events}))
    files = [f"trace{number}.json" for number in range(30)]
    lines = run_on_terminal(["import", *files], tmp_path)
    check_screen(lines, "of 30)", "import trace", "detscope show", "detscope runs runs has all of them")


def test_a_prediction_ends_with_what_fits_on_one_screen(tmp_path: Path) -> None:
    lines = run_on_terminal(["predict", "tiny_fasterrcnn", "--memory-limit", "8GiB"], tmp_path)
    check_screen(lines, "By batch size", "fits", "best batch", "| less")


def print_on_screen(sections: list[Section]) -> list[str]:
    console = Console(width=COLUMNS, height=25, record=True, file=io.StringIO())
    print_sections(sections, console, most_lines=SCREEN_LINES, more="the folder has the rest")
    return console.export_text().splitlines()


TIME = {"per": "image", "before": 10.0, "after": 9.0, "gain": 0.1, "pairs": 6, "steps": [60, 60]}


@pytest.mark.parametrize("verdict", ["accept", "reject", "undecided"])
def test_a_try_keeps_its_verdict_and_folder_however_much_it_changed(verdict: str) -> None:
    given = {"verdict": verdict, "why": LONG, "time": TIME, "change": [LONG] * 40, "command": LONG * 3}
    result = made_figure(TryResult, {**given, "folder": "runs/the-try", "not_checked": [LONG] * 20})
    check_screen(
        print_on_screen(try_sections(result)), f"{verdict}: a sentence", "runs/the-try", "ms per image"
    )


def test_a_tuning_of_many_changes_keeps_what_to_use() -> None:
    tried = [
        {"title": f"{LONG} {n}", "verdict": "reject", "why": LONG, "time": TIME, "rule": "r"}
        for n in range(30)
    ]
    result = made_figure(TuneResult, {"tried": tried, "verdict": LONG, "config": "runs/tuned.toml"})
    lines = print_on_screen(tuning_sections(result))
    check_screen(lines, "detscope train --config runs/tuned.toml", "the folder has the rest", "of 30)")
