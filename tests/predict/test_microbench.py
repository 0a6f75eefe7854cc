from __future__ import annotations

import json
import time
from itertools import islice
from pathlib import Path

import pytest

from detscope.errors import MachineError, UsageError
from detscope.predict.device_model import fit_device
from detscope.predict.graph import CONVOLUTION, KNOWN_KINDS
from detscope.predict.layer_features import LayerCall, class_of
from detscope.predict.layer_times import CLAMP_IN_PLACE, PARAMETER, STEP, read_layer_times
from detscope.predict.microbench_clock import clock_for
from detscope.predict.microbench_design import Limits, largest_elements, multiplications, rounds
from detscope.predict.microbench_layers import Bench, made_call, made_inputs
from detscope.predict.microbench_reference import Drift
from detscope.predict.microbench_run import measure, measure_layers
from detscope.sessions.fit_microbench import run_microbench

TINY = Limits(elements=2e4, multiplications=2e6)


def test_the_same_seed_gives_the_same_layers_and_another_gives_others() -> None:
    one, same, other = (list(islice(rounds(seed), 2)) for seed in (3, 3, 4))
    assert one == same
    assert one != other
    assert one[0] != one[1]


def test_every_round_holds_every_kind_and_keeps_its_limits() -> None:
    for trials in islice(rounds(0, TINY), 3):
        assert {trial.operation.kind for trial in trials} == KNOWN_KINDS | {PARAMETER, STEP, CLAMP_IN_PLACE}
        assert all(multiplications(trial) <= TINY.multiplications for trial in trials)
        images = [trial for trial in trials if trial.operation.kind not in (PARAMETER, STEP)]
        assert all(largest_elements(trial) <= TINY.elements for trial in images)


def test_convolutions_of_all_classes_with_aligned_and_odd_channels_come_in_a_few_rounds() -> None:
    trials = [trial for some in islice(rounds(0), 4) for trial in some if trial.operation.kind == CONVOLUTION]
    classes = {
        class_of(LayerCall(trial.operation, trial.batch, trial.stages[0]), training=True) for trial in trials
    }
    assert classes == {
        "1x1 convolution",
        "1x1 convolution, few images",
        "3x3 convolution",
        "strided convolution",
        "strided 1x1 convolution",
        "large-window convolution",
        "depthwise convolution",
        "grouped convolution",
        "first convolution",
    }
    inside = [trial.operation.convolution.in_channels % 16 for trial in trials if trial.operation.convolution]
    assert 0.25 < sum(rest == 0 for rest in inside) / len(inside) < 0.75


def test_every_layer_of_a_round_runs_and_has_the_shape_that_it_says() -> None:
    import torch

    bench = Bench(torch, "cpu", clock_for("cpu"))
    for trial in next(rounds(0, TINY)):
        if trial.operation.kind in (PARAMETER, STEP):
            continue
        call = made_call(bench, trial, training=True)
        _, inputs = made_inputs(bench, trial, input_gradient=True)
        output = call(*inputs)
        assert tuple(output.shape) == (trial.batch, *trial.operation.output_shape[1:]), trial
        parameters = () if call.module is None else [one.numel() for one in call.module.parameters()]
        assert tuple(parameters) == trial.operation.parameters


def test_a_tiny_bench_is_measured_kept_and_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detscope.predict.microbench_run.CPU_LIMITS", TINY)
    told: list[float] = []
    file = tmp_path / "kept" / "microbench.csv"
    began = time.perf_counter()
    rows = run_microbench("cpu", 4.0, file, lambda share, _: told.append(share), threads=1)
    assert time.perf_counter() - began < 4.0 + 5.0  # it ends with the layer that is running
    assert all(row.ms > 0 and row.drift > 0 for row in rows)
    assert told == sorted(told)
    assert [one.stage for one in read_layer_times(file)] == [one.stage for one in rows]
    facts = json.loads((tmp_path / "kept" / "microbench.environment.json").read_text())
    assert facts["rows"] == len(rows)
    assert facts["torch_threads"] == 1
    assert facts["slowest_reference_over_fastest"] >= 1
    assert str(tmp_path) not in json.dumps(facts)
    assert fit_device([], layer_times=rows).layer_rows == len(rows)


def test_more_work_takes_longer() -> None:
    import torch

    bench = Bench(torch, "cpu", clock_for("cpu"))
    some = Limits(elements=1e6, multiplications=5e7)
    trials = [trial for trial in next(rounds(0, some)) if trial.operation.kind == CONVOLUTION]
    small, large = min(trials, key=multiplications), max(trials, key=multiplications)
    for stage in ("training", "inference"):
        assert measure(bench, small, stage) < measure(bench, large, stage)


def test_a_bench_without_time_or_device_says_so_in_one_line() -> None:
    with pytest.raises(UsageError, match="no time"):
        run_microbench("cpu", 0.0, None)
    with pytest.raises(UsageError, match="not one layer"):
        run_microbench("cpu", 1e-9, None)
    with pytest.raises((MachineError, UsageError)):
        run_microbench("cuda:99", 1.0, None)


def test_drift_is_in_proportion_between_references_and_one_accident_is_none() -> None:
    seconds = tuple(10.0 * place for place in range(7))
    drift = Drift(seconds, (9.0, 2.0, 2.0, 2.0, 2.0, 4.0, 4.0), (1.0,) * 7)
    assert drift.at(0.0, computes=True) == pytest.approx(1.0)
    assert drift.at(45.0, computes=True) == pytest.approx(1.5)
    assert drift.at(60.0, computes=True) == pytest.approx(2.0)
    assert drift.at(45.0, computes=False) == pytest.approx(1.0)
    assert drift.largest == pytest.approx(2.0)


def test_a_round_that_did_not_end_is_not_counted() -> None:
    assert measure_layers("cpu", 0.2, limits=TINY).rounds == 0
