from __future__ import annotations

import numpy as np
import pytest
from made_networks import chain, conv, made_samples

from detscope.predict.layers.graph import LayerGraph
from detscope.predict.models.methods import fit_hybrid
from detscope.predict.models.physical import (
    TERMS,
    Tiles,
    calibrate_latency,
    choose_physical,
    count_step_cost,
    find_fair_places,
    fit_physical,
)
from detscope.predict.models.residual import fit_residuals
from detscope.predict.samples import StepCase, StepSample, choose_spread


def errors(model: object, samples: list[StepSample]) -> np.ndarray:
    truth = np.array([one.latency_ms for one in samples])
    return np.abs(model.predict([one.case for one in samples]) / truth - 1)  # type: ignore[attr-defined]


def test_channels_are_rounded_up_to_the_tile_of_their_kernel() -> None:
    def multiplications(channels: int) -> float:
        graph = LayerGraph("x", (conv(0, 1, channels, channels, 8, kernel=3),))
        return count_step_cost(graph, 16, Tiles(winograd=64)).terms[TERMS.index("3x3 multiplications")]

    assert multiplications(33) == multiplications(64) < multiplications(65)


def test_inference_costs_a_third_of_the_multiplications_of_training() -> None:
    graph = LayerGraph("x", (conv(0, 1, 64, 64, 8, kernel=3),))
    trained, inferred = (count_step_cost(graph, 16, Tiles(), training=flag).terms for flag in (True, False))
    place = TERMS.index("3x3 multiplications")
    assert trained[place] == pytest.approx(3 * inferred[place])


def test_latencies_that_follow_the_model_are_found_again_on_an_unseen_network() -> None:
    samples = made_samples()
    seen = [one for one in samples if one.network != "net1"]
    asked = [one for one in samples if one.network == "net1"]
    assert errors(choose_physical(seen), asked).mean() < 0.03


def test_a_step_is_as_long_as_its_host_or_its_device_whichever_is_longer() -> None:
    model = choose_physical(made_samples())
    device, host = model.split_parts([StepCase(chain(16), 1), StepCase(chain(96), 256)])
    assert host[0] > device[0]
    assert device[1] > host[1]
    assert model.predict([StepCase(chain(16), 1)])[0] == pytest.approx(host[0])


def test_coefficients_are_never_negative_and_shares_add_up() -> None:
    model = fit_physical(made_samples(), Tiles(), 0.01)
    assert min(*model.device_ms, model.call_ms, model.step_ms) >= 0
    case = StepCase(chain(64), 64)
    assert sum(model.share_by_class(case).values()) == pytest.approx(model.split_parts([case])[0][0])


def test_the_hybrid_learns_what_physics_leaves_over_between_levels() -> None:
    def bent(one: StepSample) -> StepSample:
        factor = (one.case.batch / 16) ** 0.2  # what no kernel class explains
        return StepSample(one.case, one.network, one.level, latency_ms=(one.latency_ms or 0) * factor)

    samples = [bent(one) for one in made_samples()]
    seen = [one for one in samples if one.level != 40]
    asked = [one for one in samples if one.level == 40]
    physical = choose_physical(seen)
    assert errors(fit_hybrid(seen, physical), asked).mean() < 0.6 * errors(physical, asked).mean()


def test_a_residual_is_exact_where_it_was_seen_and_its_mean_far_away() -> None:
    places = np.linspace(0, 1, 40)[:, None] * np.ones(4)
    residual = 0.2 * np.sin(3 * places[:, 0]) + 0.1
    model = fit_residuals(places, [residual])[0]
    assert np.abs(model.predict(places) - residual).max() < 0.02
    assert model.predict(places[:1] + 1000)[0] == pytest.approx(residual.mean())


def test_an_accident_of_measurement_does_not_bend_the_residual_beyond_a_half() -> None:
    residual = np.zeros(20)
    residual[3] = 9.0
    model = fit_residuals(np.arange(20.0)[:, None], [residual])[0]
    assert np.abs(model.predict(np.arange(20.0)[:, None])).max() <= 0.5


def test_a_few_samples_scale_the_device_and_leave_the_host() -> None:
    model = choose_physical(made_samples())
    slow = [
        StepSample(one.case, one.network, one.level, latency_ms=1.5 * float(model.predict([one.case])[0]))
        for one in made_samples()
        if one.network == "net0" and one.level == 0
    ]
    scaled, how = calibrate_latency(model, choose_spread(slow, 3))
    assert how.factor == pytest.approx(1.5)
    assert scaled.call_ms == model.call_ms
    assert [one.case.batch for one in choose_spread(slow, 3)] == [2, 16, 64]


def test_leaving_out_the_only_network_with_a_kernel_class_is_not_fair() -> None:
    samples = made_samples(2)
    pointwise = LayerGraph("p", (conv(0, 1, 3, 8, 32),))
    mixed = [*samples, StepSample(StepCase(pointwise, 4), "pointwise", 0, latency_ms=1.0)]
    assert len(find_fair_places(mixed)) == len(mixed)  # net0 and net1 have each other
    alone = [one for one in mixed if one.network != "net1"]
    assert [alone[place].network for place in find_fair_places(alone)] == ["pointwise"]
