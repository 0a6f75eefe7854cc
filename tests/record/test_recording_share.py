"""Of short steps a share is recorded, and nothing that is told of all steps is lost."""

from __future__ import annotations

import torch
from torch import nn

from detscope.analyze.summary import summarize
from detscope.record.steps.schedule import Schedule
from detscope.record.steps.share import AIM, DENSE, DENSE_TRAINED, RecordingShare, measure_event_ns
from detscope.runs.reader import load_run

STEPS = 120


def told(events, spent_ns, event_ns=700.0, steps=DENSE, closing_ns=0):
    share = RecordingShare(event_ns)
    share.add_step(events, spent_ns, 50_000_000)  # the first has all to lay out
    for _ in range(steps - 1):
        share.add_step(events, spent_ns, closing_ns)
    return share.one_in()


def test_a_long_step_is_recorded_every_time_and_a_short_one_as_often_as_its_cost_allows():
    assert told(800, 500_000_000) == 1
    assert told(800, 7_000_000, steps=DENSE - 1) == 1, "the first few are recorded whatever they cost"
    short, shorter = told(800, 7_000_000), told(800, 1_000_000)
    assert 1 < short < shorter
    assert told(800, 7_000_000, event_ns=0.0) == 1
    for spent_ns in (1_000_000, 7_000_000, 50_000_000):
        assert 800 * 700 / told(800, spent_ns) <= AIM * spent_ns


def test_what_is_done_behind_a_step_counts_as_it_was_seen_on_the_clock():
    assert told(800, 7_000_000) < told(800, 7_000_000, closing_ns=700_000)
    assert told(0, 7_000_000, event_ns=1e-9, closing_ns=700_000) in (60, 61), "three times a tenth"
    assert told(800, 7_000_000, event_ns=0.0, closing_ns=700_000) == 1, "ranks record the same steps"


def test_an_event_takes_some_time():
    assert 10 < measure_event_ns() < 10**6


def test_steps_of_a_share_are_drawn_and_those_before_stay_as_they_were():
    usual = Schedule(warmup_steps=3, bare_every=4)
    schedule = Schedule(warmup_steps=3, bare_every=4, recorded_one_in=6, thinned_from=20)
    modes = [schedule.mode_of(index) for index in range(6020)]
    assert modes[:20] == [usual.mode_of(index) for index in range(20)]
    recorded = [index for index, mode in enumerate(modes) if index >= 20 and mode == "recorded"]
    assert set(modes[20:]) == {"recorded", "bare"}
    assert 850 < len(recorded) < 1150
    for period in (2, 4, 8):
        met = [sum(index % period == phase for index in recorded) for phase in range(period)]
        assert min(met) > 0.75 * len(recorded) / period
    assert all(schedule.with_modules(index) for index in recorded[:200])


def test_a_short_prediction_is_mostly_bare_and_every_step_is_counted_with_what_was_in_it(listen):
    model = nn.Sequential(*(nn.Conv2d(3, 3, 1) for _ in range(30))).eval()
    with listen() as heard, torch.inference_mode():
        for index in range(STEPS):
            model(torch.rand(1 + index % 2, 3, 8, 8))
    run = load_run(heard.run)
    steps = run.table("steps").filter(phase="step").sort("step")
    assert steps["step"].to_list() == list(range(STEPS))
    modes = steps["mode"].to_list()
    assert DENSE <= modes.count("recorded") < STEPS / 2 < modes.count("bare")
    content = run.table("content").sort("step")
    assert content["step"].to_list() == list(range(STEPS))
    assert content["images"].to_list() == [1 + index % 2 for index in range(STEPS)]
    assert (steps["wall_ns"] > 0).all() and (content["pause_ns"] >= 0).all()
    begun, ended = steps["start_ns"], steps["start_ns"] + steps["wall_ns"]
    assert (begun[1:] >= ended[:-1]).all(), "no two steps share any time"
    figures = summarize(heard.run)
    assert {part.name: part.steps for part in figures.script.parts}["evaluation"] == STEPS
    assert len([one for one in figures.modules if one.kind == "module"]) >= 30


def train_short_steps(listen, **options):
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(30)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with listen(**options) as heard:
        for _ in range(STEPS):
            model(torch.rand(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    steps = load_run(heard.run).table("steps").filter(phase="step").sort("step")
    return heard.run, steps["mode"].to_list()


def test_of_a_training_more_steps_are_recorded_one_after_the_other_and_then_a_share(listen):
    run, modes = train_short_steps(listen)
    first = modes[: 3 + DENSE_TRAINED * 4 // 3]
    assert len(modes) == STEPS and first.count("recorded") >= DENSE_TRAINED - 2
    assert DENSE_TRAINED <= modes.count("recorded") < STEPS / 2 < modes.count("bare")
    step = summarize(run).step_ms
    assert step.p95 is not None and step.mean_n > 90 > step.n, "of all steps"


def test_who_asks_for_steps_has_them_recorded_one_after_the_other(listen):
    _, modes = train_short_steps(listen, window=f"0:{STEPS}")
    assert modes.count("recorded") > 2 * modes.count("bare")
