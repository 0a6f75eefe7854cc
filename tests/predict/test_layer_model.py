from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_networks import add, chain, conv, relu

from detscope.errors import InputError
from detscope.predict.answer import answer_questions, share_by_stage
from detscope.predict.device.file import load_model, save_model
from detscope.predict.device.model import ASSUMED_WIDTH, fit_device
from detscope.predict.layers.calls import ACCUMULATION, LayerCall, classify_call, list_calls, roofline_terms
from detscope.predict.layers.graph import LayerGraph, Operation
from detscope.predict.layers.model import LayerModel, LayerTable, choose_layers, fit_layers, fit_scales
from detscope.predict.layers.times import FIRST, LayerTime, read_layer_times, write_layer_times
from detscope.predict.microbench.design import LayerTrial, draw_rounds
from detscope.predict.samples import StepCase, StepSample

NS_PER_MULTIPLICATION, NS_PER_ELEMENT, LAUNCH_MS = 0.02, 1.0, 0.01


def made_ms(call: LayerCall) -> float:
    """A device whose vector kernels work on 16 channels at once; times in ms."""
    terms = roofline_terms(call)
    if call.operation.convolution is not None:
        rounded, _, into, out, weights, _ = terms
        return 1e3 * (NS_PER_MULTIPLICATION * rounded + NS_PER_ELEMENT * (into + out + weights)) + LAUNCH_MS
    return 1e3 * NS_PER_ELEMENT * sum(terms[:-1]) + LAUNCH_MS


def trials(count: int) -> list[LayerTrial]:
    some = draw_rounds(0)
    return [trial for _ in range(count) for trial in next(some)]


def measured(count: int = 6, time: Callable[[LayerCall], float] = made_ms) -> list[LayerTime]:
    return [
        LayerTime(trial.operation, trial.batch, stage, time(LayerCall(trial.operation, trial.batch, stage)))
        for trial in trials(count)
        for stage in trial.stages
    ]


def true_ms(graph: LayerGraph, batch: int, factor: Callable[[str], float] = lambda _: 1.0) -> float:
    return sum(
        made_ms(call) * factor(classify_call(call, training=True))
        for call in list_calls(graph, batch, training=True)
    )


def block(channels: int, name: str, size: int = 16) -> LayerGraph:
    """A residual block behind a first convolution: one tensor is read twice."""
    operations = (
        conv(0, 1, 3, channels, size, kernel=3),
        relu(1, channels, size),
        conv(1, 2, channels, channels, size, kernel=3),
        add(2, 1, 3, channels, size),
        conv(3, 4, channels, 2 * channels, size),
    )
    staged = tuple(replace(one, stage="body" if place else "stem") for place, one in enumerate(operations))
    return LayerGraph(name, staged, family=name)


def samples(factor: Callable[[str], float]) -> list[StepSample]:
    networks = [("block", block), ("chain", lambda channels, _: chain(channels))]
    return [
        StepSample(StepCase(graph, batch), name, level, latency_ms=true_ms(graph, batch, factor))
        for name, make in networks
        for level, channels in ((0, 96), (30, 67), (60, 38))
        for graph in [make(channels, f"{name}_{level}")]
        for batch in (2, 6, 16)
    ]


@pytest.fixture(scope="module")
def table() -> LayerTable:
    return fit_layers(measured())


def errors(model: LayerModel, cases: Sequence[StepCase]) -> list[float]:
    return [abs(model.predict([one])[0] / true_ms(one.graph, one.batch) - 1) for one in cases]


def test_a_made_up_device_is_found_again_in_networks_it_never_ran(table: LayerTable) -> None:
    cases = [StepCase(block(channels, "b"), batch) for channels in (16, 64, 112) for batch in (2, 16)]
    assert max(errors(LayerModel(table), cases)) < 0.05


def test_odd_channels_cost_what_their_vectors_cost(table: LayerTable) -> None:
    model = LayerModel(table)
    cases = [StepCase(block(channels, "b"), 4) for channels in (33, 41, 75)]
    assert max(errors(model, cases)) < 0.08
    odd, full = (model.predict([StepCase(block(channels, "b", 32), 8)])[0] for channels in (33, 48))
    assert odd > 0.85 * full  # two thirds of the channels, and yet hardly less


def test_the_first_layer_has_no_gradient_of_its_input_and_shared_tensors_have_sums() -> None:
    calls = list(list_calls(block(16, "b"), 2, training=True))
    assert [call.stage == FIRST for call in calls[:3]] == [True, False, False]
    assert [classify_call(call, training=True) for call in calls].count(ACCUMULATION) == 1
    inferred = list(list_calls(block(16, "b"), 2, training=False))
    assert len(inferred) == len(block(16, "b").operations)


def test_factors_are_learnt_from_whole_steps_and_tried_on_networks_left_out(table: LayerTable) -> None:
    def factor(name: str) -> float:
        return 1.5 if name == "3x3 convolution" else 1.2

    known = samples(factor)
    model = choose_layers(table, known)
    truth = np.array([one.latency_ms for one in known])
    before = np.abs(LayerModel(table).predict([one.case for one in known]) / truth - 1).mean()
    after = np.abs(model.predict([one.case for one in known]) / truth - 1).mean()
    assert after < 0.25 * before
    unseen = StepCase(block(48, "other", 28), 8)
    assert model.predict([unseen])[0] == pytest.approx(true_ms(unseen.graph, 8, factor), rel=0.1)


def test_a_strong_pull_keeps_factors_together_and_a_weak_one_lets_them_go(table: LayerTable) -> None:
    known = samples(lambda name: 2.0 if name == "3x3 convolution" else 1.0)
    weak, strong = (fit_scales(table, known, pull).scales for pull in (0.001, 30.0))
    assert weak["3x3 convolution"] > 1.5
    assert weak["3x3 convolution"] / weak["1x1 convolution"] > 1.3
    assert max(strong.values()) / min(strong.values()) < 1.1


def test_layers_alone_make_a_device_model_that_is_stored_as_numbers(tmp_path: Path) -> None:
    made = fit_device([], layer_times=measured(4))
    assert set(made.targets) == {"latency"}
    assert made.targets["latency"].far_name == "layers"
    assert made.targets["latency"].far_width == ASSUMED_WIDTH
    assert any("no whole network" in note for note in made.notes)
    save_model(made, tmp_path / "device.model")
    again = load_model(tmp_path / "device.model")
    assert (again.layer_rows, again.notes, again.fingerprint) == (
        made.layer_rows,
        made.notes,
        made.fingerprint,
    )
    cases = [StepCase(block(channels, "b"), 3) for channels in (16, 37)]
    one, other = (found.targets["latency"].estimate_cases(cases) for found in (made, again))
    assert one.predicted.tolist() == pytest.approx(other.predicted.tolist(), rel=1e-12)
    assert one.upper.tolist() == pytest.approx(other.upper.tolist(), rel=1e-12)
    assert one.extrapolated.all()


@pytest.mark.parametrize("method", ["auto", "physical", "hybrid"])
def test_layers_and_whole_steps_together_come_back_equal(method: str, tmp_path: Path) -> None:
    known = samples(lambda _: 1.3)
    made = fit_device(known, ["latency"], method=method, layer_times=measured(3))
    target = made.targets["latency"]
    assert target.far_name in {"physical": ("layers",), "hybrid": ("hybrid",)}.get(
        method, ("layers", "hybrid")
    )
    save_model(made, tmp_path / "device.model")
    again = load_model(tmp_path / "device.model").targets["latency"]
    cases = [known[0].case, StepCase(block(50, "b", 20), 5)]
    predicted = target.estimate_cases(cases).predicted.tolist()
    assert again.estimate_cases(cases).predicted.tolist() == pytest.approx(predicted, rel=1e-9)


def test_an_operation_never_measured_is_named_and_counted_by_its_traffic(table: LayerTable) -> None:
    shape = (1, 16, 32, 32)
    strange = LayerGraph(
        "strange", (*block(16, "b", 32).operations, Operation("swirl", (4,), (shape,), 5, shape))
    )
    made = fit_device([], layer_times=measured(2))
    found = answer_questions(strange, [2], made)
    assert any("swirl" in note and "never" not in note for note in found["notes"])
    assert not any("swirl" in note for note in answer_questions(block(16, "b"), [2], made)["notes"])
    loss = Operation("_log_softmax", (4,), ((1, 10),), 5, (1, 10))  # measured as part of what a step costs
    with_loss = LayerGraph("with_loss", (*block(16, "b").operations, loss))
    assert not any("memory traffic" in note for note in answer_questions(with_loss, [2], made)["notes"])
    model = LayerModel(table)
    assert model.predict([StepCase(strange, 8)])[0] > model.predict([StepCase(block(16, "b", 32), 8)])[0]


def test_a_microbench_that_was_cut_short_counts_what_it_missed_by_traffic() -> None:
    few = [row for row in measured() if row.operation.kind in ("relu", "parameter")]
    table, graph = fit_layers(few), block(20, "block")
    assert {"add", "convolution"} <= set(table.list_unseen_kinds(graph))
    assert LayerModel(table).predict([StepCase(graph, 2)])[0] > 0


def test_shares_by_class_and_by_stage_add_up(table: LayerTable) -> None:
    model = LayerModel(table, {"all": 1.1, "relu": 2.0})
    case = StepCase(block(32, "b"), 4)
    whole = model.predict([case])[0]
    assert sum(model.share_by_class(case).values()) == pytest.approx(whole)
    assert sum(model.sum_by_stage(case).values()) == pytest.approx(whole)
    made = fit_device([], layer_times=measured(2)).targets["latency"]
    shares = share_by_stage(made, case)
    assert shares is not None
    assert set(shares) == {"stem", "body"}
    assert sum(shares.values()) == pytest.approx(1)


def test_a_slow_moment_of_the_machine_is_taken_out_of_a_row(table: LayerTable) -> None:
    slow = [replace(row, ms=row.ms * 1.7, drift=1.7) for row in measured()]
    case = StepCase(block(32, "b"), 4)
    assert LayerModel(fit_layers(slow)).predict([case])[0] == pytest.approx(
        LayerModel(table).predict([case])[0]
    )


def test_inference_has_a_model_of_its_own() -> None:
    model = LayerModel(fit_layers(measured(), training=False))
    graph = block(64, "b")
    truth = sum(made_ms(call) for call in list_calls(graph, 8, training=False))
    assert model.predict([StepCase(graph, 8)])[0] == pytest.approx(truth, rel=0.05)


def test_rows_come_back_from_their_file_as_they_were(tmp_path: Path) -> None:
    rows = measured(1)
    write_layer_times(tmp_path / "microbench.csv", rows)
    again = read_layer_times(tmp_path / "microbench.csv")
    assert [(one.batch, one.stage) for one in again] == [(one.batch, one.stage) for one in rows]
    for one, other in zip(rows, again, strict=True):
        call, same = (LayerCall(row.operation, row.batch, row.stage) for row in (one, other))
        assert roofline_terms(call) == roofline_terms(same)
        assert classify_call(call, training=True) == classify_call(same, training=True)
        assert other.ms == pytest.approx(one.ms, rel=1e-5)


@pytest.mark.parametrize(
    ("old", "new"), [("training", "sleeping"), ("1x1", "1xx"), (",no,", ",no,,,,"), ("kind,", "sort,")]
)
def test_a_damaged_file_of_layers_is_refused_in_one_line(old: str, new: str, tmp_path: Path) -> None:
    file = tmp_path / "microbench.csv"
    write_layer_times(file, measured(1))
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(InputError) as error:
        read_layer_times(file)
    assert "\n" not in str(error.value)


def test_a_model_file_of_version_one_is_still_read(tmp_path: Path) -> None:
    made = fit_device(samples(lambda _: 1.0), ["latency"], method="physical")
    save_model(made, tmp_path / "device.model")
    plain = json.loads((tmp_path / "device.model").read_text())
    plain["version"] = 1
    del plain["layer_rows"], plain["notes"]
    (tmp_path / "device.model").write_text(json.dumps(plain))
    assert load_model(tmp_path / "device.model").rows == made.rows


def test_nothing_measured_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="nothing was measured"):
        fit_device([])
