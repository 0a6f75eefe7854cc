"""How equal processes differ: assumed, learnt from repeats, kept by machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compared_runs import make_run
from detscope.analyze.compare.change import Sample, compare_samples
from detscope.analyze.compare.runs import compare_runs
from detscope.analyze.compare.variation import (
    ASSUMED,
    ASSUMED_FREEDOM,
    FILE_NAME,
    GroupVariation,
    LearntFigure,
    MachineVariation,
    RunLoad,
    find_variation,
    fingerprint_machine,
    keep_variation,
    learn_variation,
    measure_figure,
    measure_waiting,
    read_variations,
)

UNKNOWN = MachineVariation(machine="m")


def processes(random: np.random.Generator, varies: float, count: int) -> list[Sample]:
    return [Sample(float(value)) for value in 100 * np.exp(random.normal(0, varies, count))]


def test_equal_processes_are_told_apart_in_one_of_twenty_pairs_at_most():
    random = np.random.default_rng(3)
    between = UNKNOWN.find_spread("step", 100.0, [0.0, 0.0])
    alarms = [
        compare_samples(processes(random, ASSUMED["step"], 1), processes(random, ASSUMED["step"], 1), between)
        for _ in range(1000)
    ]
    assert np.mean([one.is_seen for one in alarms]) <= 0.05


def test_several_processes_on_each_side_need_nothing_assumed():
    random = np.random.default_rng(4)
    equal = [
        compare_samples(processes(random, 0.1, 5), processes(random, 0.1, 5), None).is_seen
        for _ in range(1000)
    ]
    assert 0.02 <= np.mean(equal) <= 0.08
    slower = [
        compare_samples(
            processes(random, 0.005, 5),
            [Sample(one.value * 1.02) for one in processes(random, 0.005, 5)],
            None,
        )
        for _ in range(200)
    ]
    assert np.mean([one.verdict == "slower" for one in slower]) >= 0.9


def test_a_machine_that_varies_more_than_assumed_is_learnt_and_widens_intervals(tmp_path):
    random = np.random.default_rng(5)
    rows = [measure_figure("step", [processes(random, 0.10, 12)] * 1, [0.0], [0.0])]
    found = [row for row in rows if row is not None]
    assert found[0].freedom == 11
    learnt = learn_variation(UNKNOWN, {"step": found}, 12, "a processor")
    assert (
        learnt.find_spread("step", 100.0, [0.0, 0.0]).variance
        > 4 * UNKNOWN.find_spread("step", 100.0, [0.0, 0.0]).variance
    )
    assert learnt.find_spread("step", 100.0, [0.0, 0.0]).freedom == ASSUMED_FREEDOM + 11
    again = learn_variation(learnt, {"step": [LearntFigure(factor=1.0, freedom=11.0)]}, 12, None)
    assert (again.runs, again.processor) == (24, "a processor")
    keep_variation(tmp_path / FILE_NAME, learnt)
    keep_variation(tmp_path / FILE_NAME, MachineVariation(machine="another", runs=2))
    keep_variation(tmp_path / FILE_NAME, again)
    assert {one.machine: one.runs for one in read_variations(tmp_path / FILE_NAME)} == {"m": 24, "another": 2}


def test_what_was_learnt_beside_the_runs_is_used_and_said(tmp_path):
    first, second = make_run(tmp_path, 1), make_run(tmp_path, 2)
    assumed = compare_runs(first, [second]).comparisons[0]
    assert assumed.between is not None and assumed.between.source == "assumed"
    wide = GroupVariation(group="step", factor=50.0, freedom=30.0)
    keep_variation(
        tmp_path / FILE_NAME, MachineVariation(machine=fingerprint_machine(first), runs=32, groups=(wide,))
    )
    assert find_variation(first).runs == 32
    learnt = compare_runs(first, [second]).comparisons[0]
    assert learnt.between is not None
    assert (learnt.between.source, learnt.between.runs) == ("learnt on this machine", 32)
    assert (learnt.step.resolution or 0) > 2 * (assumed.step.resolution or 1)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 99, "machines": []}', '{"version": 1}'])
def test_a_file_that_is_not_ours_teaches_nothing(tmp_path: Path, text: str):
    (tmp_path / FILE_NAME).write_text(text)
    assert read_variations(tmp_path / FILE_NAME) == ()
    keep_variation(tmp_path / FILE_NAME, UNKNOWN)
    assert read_variations(tmp_path / FILE_NAME) == (UNKNOWN,)


def test_waiting_for_a_core_counts_where_others_worked_or_nobody_looked():
    assert measure_waiting(RunLoad(0.9, 0.01), RunLoad(0.3, 0.02)) == 0.0
    assert measure_waiting(RunLoad(0.9, 0.01), RunLoad(0.3, 0.60)) == pytest.approx(np.log(3))
    assert measure_waiting(RunLoad(0.3, None), RunLoad(0.9, None)) == pytest.approx(-np.log(3))
    assert measure_waiting(RunLoad(None, None), RunLoad(0.3, None)) == 0.0


def test_what_waiting_explains_is_inside_the_interval_and_what_it_cannot_explain_is_told():
    between = UNKNOWN.find_spread("step", 100.0, [0.0, 0.0], waiting=float(np.log(2)))
    doubled = compare_samples([Sample(100.0)], [Sample(190.0)], between)
    assert doubled.verdict == "no difference seen"
    assert doubled.relative_ci95 is not None and doubled.relative_ci95[0] < 0
    assert compare_samples([Sample(100.0)], [Sample(400.0)], between).verdict == "slower"
    assert compare_samples([Sample(100.0)], [Sample(40.0)], between).verdict == "faster"  # though it waited
