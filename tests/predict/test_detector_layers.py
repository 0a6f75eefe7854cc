"""What a detector's step has and a classifier's has not: prepared images, shared heads, calls beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from made_networks import conv, relu

from detscope.predict.answer import answer_questions
from detscope.predict.device.model import fit_device
from detscope.predict.layers.calls import FORWARD_ALONE, GRADIENT_SUM, LayerCall, classify_call, list_calls
from detscope.predict.layers.graph import LayerGraph, Operation, SideOperators
from detscope.predict.layers.kinds import ADAM, ADD, BESIDE, NMS, PARAMETER, SMALL, VIEW
from detscope.predict.layers.lists import read_layers, write_layers
from detscope.predict.layers.model import LayerModel, fit_layers
from detscope.predict.layers.times import FIRST, INFERENCE, TRAINING, LayerTime
from detscope.predict.microbench.design import draw_rounds
from detscope.predict.samples import StepCase

CALL_MS = {VIEW: 0.002, SMALL: 0.004, PARAMETER: 0.01, ADAM: 0.03}
IMAGE = (1, 3, 16, 16)
BESIDES = (
    SideOperators(VIEW, "rpn", (10.0, 20.0), (10.0, 20.0)),
    SideOperators(SMALL, "rpn", (5.0, 30.0), (500.0, 3000.0)),
    SideOperators(NMS, "rpn", (0.0, 1.0), (0.0, 200.0)),
)


def made_ms(call: LayerCall) -> float:
    """Every call of a kind takes the same time; forward alone a third of it."""
    return CALL_MS.get(call.operation.kind, 0.3) / (3 if call.stage == INFERENCE else 1)


def measured(without: Sequence[str] = ()) -> list[LayerTime]:
    some = draw_rounds(0)
    return [
        LayerTime(
            trial.operation, trial.batch, stage, made_ms(LayerCall(trial.operation, trial.batch, stage))
        )
        for _ in range(3)
        for trial in next(some)
        for stage in trial.stages
        if trial.operation.kind not in without
    ]


def head_on_two_levels() -> LayerGraph:
    """Images are prepared, a backbone makes two levels, and one head sees both."""
    shared = replace(conv(2, 4, 8, 8, 16, kernel=3), parameters=())
    operations = (
        Operation("sub", (0,), (IMAGE,), 1, IMAGE),
        conv(1, 2, 3, 8, 16, kernel=3),
        relu(2, 8, 16),
        conv(2, 3, 8, 8, 16, kernel=3),
        shared,
    )
    return LayerGraph("head", operations, beside=BESIDES)


def test_prepared_images_have_no_gradient_and_the_first_layer_is_still_the_first() -> None:
    calls = list(list_calls(head_on_two_levels(), 2, training=True))
    assert [call.stage for call in calls[:5]] == [INFERENCE, FIRST, TRAINING, TRAINING, TRAINING]
    assert classify_call(calls[0], training=True) == "arithmetic" + FORWARD_ALONE
    assert classify_call(calls[1], training=True) == "first convolution"


def test_frozen_layers_run_forward_alone() -> None:
    frozen = (replace(conv(0, 1, 3, 8, 16), parameters=()), relu(1, 8, 16), conv(1, 2, 8, 8, 16))
    calls = list(list_calls(LayerGraph("frozen", frozen), 2, training=True))
    assert [call.stage for call in calls[:3]] == [INFERENCE, INFERENCE, FIRST]
    model = LayerModel(fit_layers(measured()))
    trained = LayerGraph("trained", (conv(0, 1, 3, 8, 16), *frozen[1:]))
    assert (
        model.predict([StepCase(LayerGraph("frozen", frozen), 2)])[0]
        < 0.7 * model.predict([StepCase(trained, 2)])[0]
    )


def test_a_shared_head_is_updated_once_and_its_gradients_are_summed() -> None:
    calls = list(list_calls(head_on_two_levels(), 2, training=True))
    assert sum(call.operation.kind == PARAMETER for call in calls) == 2
    sums = [call for call in calls if call.stage == GRADIENT_SUM]
    sizes = sorted(call.batch * call.operation.output_elements for call in sums)
    assert sizes == [8 * 8 * 9, 2 * 8 * 16 * 16]  # of the weights, and of the map that both levels read
    assert {call.operation.kind for call in sums} == {ADD}


def test_calls_beside_the_layers_grow_with_the_images() -> None:
    counts = {
        batch: {
            call.operation.kind: call.count
            for call in list_calls(head_on_two_levels(), batch, training=True)
            if call.operation.kind in BESIDE
        }
        for batch in (1, 4)
    }
    assert counts == {1: {VIEW: 30, SMALL: 35, NMS: 1}, 4: {VIEW: 90, SMALL: 125, NMS: 4}}
    found = LayerModel(fit_layers(measured())).sum_by_class(StepCase(head_on_two_levels(), 4))
    assert found[VIEW] == pytest.approx(90 * 0.002 / 3, rel=0.01)
    assert found[SMALL] == pytest.approx(125 * 0.004 / 3, rel=0.01)


def test_a_microbench_without_operators_of_detectors_still_answers_and_counts_no_calls_beside() -> None:
    older = fit_layers(measured(without=(*BESIDE, "arithmetic", ADAM)))
    found = LayerModel(older).sum_by_class(StepCase(head_on_two_levels(), 2))
    assert BESIDE.isdisjoint(found)
    assert older.list_unseen_kinds(head_on_two_levels()) == ("sub",)
    assert fit_layers(measured()).list_unseen_kinds(head_on_two_levels()) == ()


def test_adams_update_is_used_where_it_was_measured_and_else_said() -> None:
    graph = head_on_two_levels()
    for without, said in (((), False), ((ADAM,), True)):
        device = fit_device([], layer_times=measured(without))
        sgd, adam = (answer_questions(graph, [2], device, optimizer=name) for name in ("sgd", "adam"))
        assert any("not Adam's update" in note for note in adam["notes"]) is said
        assert not any("Adam" in note for note in sgd["notes"])
        more = adam["rows"][0]["latency_ms"] - sgd["rows"][0]["latency_ms"]
        assert more == pytest.approx(0.0 if said else 2 * (0.03 - 0.01), abs=1e-3)


def test_calls_beside_the_layers_come_back_from_a_list_of_layers(tmp_path: Path) -> None:
    file = tmp_path / "layers.json"
    write_layers(
        file, {("head", 0): head_on_two_levels(), ("plain", 0): LayerGraph("plain", (relu(0, 8, 4),))}
    )
    again = read_layers(file)
    assert again["head", 0].beside == BESIDES
    assert again["plain", 0].beside == ()
