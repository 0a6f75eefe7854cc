"""Time of a script outside of all phases: whose functions spent it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from script_listening import Net, batches

from detscope.record.script.closing import ScriptStepFigures, note_other, read_step_figures
from detscope.record.script.other import IDLE_PERIOD_S, PERIOD_S, CodeLine, CodeLook, LookPace, OtherSampler


def test_time_outside_of_phases_is_traced_to_the_function_that_spent_it(
    listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # how often a timer gets to look is the machine's business: here the function has itself looked at
    monkeypatch.setattr(OtherSampler, "start", lambda _sampler: None)

    def keep_books() -> None:
        time.sleep(0.03)
        for _ in range(3):
            looking = threading.Thread(target=heard.tracker.recording._sampler.look_once)
            looking.start()
            looking.join()

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with listen() as heard:
        for batch in batches(12):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            keep_books()
    recorded = heard.table("steps").filter(pl.col("mode") == "recorded")
    other_ns = recorded.filter(pl.col("phase") == "other")["wall_ns"]
    assert other_ns.len() >= 5
    assert other_ns.min() >= 30_000_000  # type: ignore[operator]
    (only,) = heard.script["other"]
    assert only["function"].endswith("keep_books")
    assert only["file"] == Path(__file__).name
    assert only["share_of_other"] == 1.0
    assert only["looks"] == 3 * other_ns.len()
    assert only["ms"] == pytest.approx(other_ns.mean() / 1e6)  # type: ignore[operator]
    assert only["steps"] == other_ns.len()
    assert only["inside"] == []
    assert set(note_other([only], read_step_figures(heard.run), only["looks"])) <= set(heard.info["notes"])


def test_a_large_part_outside_of_phases_is_said_with_the_functions_that_spent_it() -> None:
    row: dict[str, Any] = {"function": "keep_books", "file": "train.py", "line": 7, "share_of_other": 0.9}
    row |= {"steps": 20, "inside": []}
    large = ScriptStepFigures(other_share=0.4, steps=20)
    (said,) = note_other([row], large, 50)
    assert "other is 40% of the time of the recorded steps: 90% in keep_books (train.py:7) (from" in said
    assert "cannot tell whose" in note_other([row], large, 3)[0]
    assert note_other([row], ScriptStepFigures(other_share=0.01, steps=20), 50) == []
    row["inside"] = [{"function": "Logger.flush", "file": "framework/log.py", "line": 3}]
    (said,) = note_other([row], large, 50)
    assert "(train.py:7, there mostly in Logger.flush of framework/log.py:3)" in said


def test_what_a_rare_step_spent_is_told_of_all_steps_and_in_how_many_it_was_seen(
    listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OtherSampler, "start", lambda _sampler: None)

    def save() -> None:
        time.sleep(0.5)
        for _ in range(20):
            looking = threading.Thread(target=heard.tracker.recording._sampler.look_once)
            looking.start()
            looking.join()

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saved = 0
    with listen() as heard:
        for batch in batches(24):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            recorder = heard.tracker.recording._recorder
            step = recorder.step if recorder else None
            if step is not None and step.mode == "recorded" and saved < 2 and step.index > 8:
                saved += 1
                save()
    (only,) = heard.script["other"]
    assert (only["function"].rpartition(".")[2], only["steps"], only["looks"]) == ("save", 2, 40)
    recorded = heard.table("steps").filter(pl.col("mode") == "recorded")
    other, whole = (recorded.filter(pl.col("phase") == phase)["wall_ns"].sum() for phase in ("other", "step"))
    assert read_step_figures(heard.run).other_share == pytest.approx(other / whole)  # type: ignore[arg-type]
    (note,) = [one for one in heard.info["notes"] if one.startswith("other is")]
    assert f"other is {other / whole:.0%} of the time of the recorded steps" in note
    assert f"seen in 2 of {recorded.filter(pl.col('phase') == 'step').height} steps" in note


def test_looks_at_steps_before_the_training_are_not_taken_for_looks_at_the_training(
    listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OtherSampler, "start", lambda _sampler: None)

    def look() -> None:
        looking = threading.Thread(target=heard.tracker.recording._sampler.look_once)
        looking.start()
        looking.join()

    def print_scores() -> None:
        look()

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with listen() as heard:
        with torch.no_grad():
            for batch in batches(9):
                model(batch)
                print_scores()
        for batch in batches(9):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            look()
    assert heard.script["other"]
    assert not [row for row in heard.script["other"] if "print_scores" in row["function"]]


FRAMEWORK = """
def fit(looks):
    while looks:
        log_metrics(looks)

def log_metrics(looks):
    look = looks.pop()
    look.start()
    look.join()
"""


def frameworks_fit(tmp_path: Path, package: str) -> Any:
    file = tmp_path / "site-packages" / package / "trainer.py"
    names: dict[str, Any] = {}
    exec(compile(FRAMEWORK, str(file), "exec"), names)
    return names["fit"]


@pytest.mark.parametrize("package", ["framework", "torch"])
def test_inside_of_a_framework_its_innermost_function_is_told_beside_the_script_s_line(
    tmp_path: Path, package: str
) -> None:
    me = threading.get_ident()
    sampler = OtherSampler(lambda: me)
    frameworks_fit(tmp_path, package)([threading.Thread(target=sampler.look_once) for _ in range(4)])
    sampler.take_step(counts=True)
    (row,) = sampler.make_rows(10.0)
    assert (row["function"], row["file"], row["looks"]) == (
        "test_inside_of_a_framework_its_innermost_function_is_told_beside_the_script_s_line",
        Path(__file__).name,
        4,
    )
    assert row["steps"] == 1
    found = [(one["function"], one["file"], one["share_of_other"]) for one in row["inside"]]
    assert found == ([] if package == "torch" else [("log_metrics", "framework/trainer.py", 1.0)])


def test_a_script_that_was_typed_has_lines_of_its_own() -> None:
    me = threading.get_ident()
    sampler = OtherSampler(lambda: me)
    names: dict[str, Any] = {"looks": [threading.Thread(target=sampler.look_once)]}
    exec(compile(FRAMEWORK + "\nfit(looks)\n", "<stdin>", "exec"), names)
    sampler.take_step(counts=True)
    (row,) = sampler.make_rows(10.0)
    assert (row["function"], row["file"], row["inside"]) == ("log_metrics", "<stdin>", [])


def test_functions_are_told_by_their_share_of_the_looks_with_the_line_that_was_seen_most() -> None:
    sampler = OtherSampler(lambda: None)
    log, log_more, save = CodeLine("log", "a.py", 3), CodeLine("log", "a.py", 4), CodeLine("save", "b.py", 9)
    sampler.looks.update({CodeLook(log): 1, CodeLook(log_more): 5, CodeLook(save): 2})
    first, second = sampler.make_rows(80.0)
    assert (first["function"], first["line"], first["looks"], first["ms"]) == ("log", 4, 6, 60.0)
    assert (second["function"], second["share_of_other"], second["ms"]) == ("save", 0.25, 20.0)
    assert sampler.make_rows(None)[0]["ms"] is None


def test_a_timer_wakes_up_often_only_while_there_is_something_to_look_at() -> None:
    pace = LookPace()
    assert pace.period_s == PERIOD_S
    for turn in range(100):
        pace.count_turn(turn % 40 == 0)  # 3 of 100
    assert pace.period_s == PERIOD_S
    for turn in range(100):
        pace.count_turn(turn % 50 == 0)
    assert pace.period_s == IDLE_PERIOD_S
    for turn in range(30):
        pace.count_turn(turn % 10 == 9)  # one look now and then is no reason to wake up
    assert pace.period_s == IDLE_PERIOD_S
    for _ in range(2):
        pace.count_turn(True)
    assert pace.period_s == PERIOD_S


def test_a_timer_looks_at_the_running_function_until_it_is_stopped() -> None:
    def work() -> None:
        limit_s = time.monotonic() + 900
        while time.monotonic() < limit_s:
            if any(look.own.function.endswith("work") for _, look in list(sampler._pending)):
                break
            time.sleep(0.01)

    running = threading.get_ident()
    sampler = OtherSampler(lambda: running)
    sampler.start()
    work()
    running = None  # type: ignore[assignment]
    sampler.stop()
    seen = len(sampler._pending)
    sampler.look_once()
    assert len(sampler._pending) == seen, "nothing to look at"
    sampler.take_step(counts=True)
    rows = sampler.make_rows(10.0)
    assert sum(row["looks"] for row in rows) == seen > 0
    assert sum(row["ms"] for row in rows) == pytest.approx(10.0)
    assert {row["file"] for row in rows} == {Path(__file__).name}
    assert "work" in {row["function"].rpartition(".")[2] for row in rows}


def test_in_bare_steps_nothing_of_ours_is_awake(listen: Any) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: dict[str, set[tuple[bool, bool]]] = {}
    with listen() as heard:
        for batch in batches(40):
            optimizer.zero_grad()
            model(batch).sum().backward()
            recording = heard.tracker.recording
            recorder = recording._recorder
            if recorder is not None and recorder.step is not None:
                awake = (recorder.telemetry._free.is_set(), recording._sampler._awake.is_set())
                seen.setdefault(recorder.step.mode, set()).add(awake)
            optimizer.step()
    assert seen["bare"] == {(False, False)}
    assert seen["recorded"] == {(True, True)}
