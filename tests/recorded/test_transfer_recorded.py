"""A made-up second device out of the TX2's rows: no second real one was at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detscope.predict.device.model import transfer_target
from detscope.predict.layers.lists import read_layers
from detscope.predict.models.choice import TargetModel
from detscope.predict.models.methods import fit_method
from detscope.predict.models.physical import PhysicalModel
from detscope.predict.samples import StepSample, choose_spread, keep_measured, read_samples
from detscope.predict.score import SEEN_LEVELS

CONSTANT_BYTES, ROOM_BYTES = 600e6, 5.5e9


@pytest.fixture(scope="module")
def samples(recorded: Path) -> list[StepSample]:
    folder = recorded / "prediction" / "tx2"
    found = read_samples(folder / "measured.csv", read_layers(folder / "layers.json"))
    known = keep_measured(keep_measured(found, "latency_ms"), "process_bytes")
    return [one for one in known if one.level in SEEN_LEVELS]


def second_device(samples: list[StepSample], latency: TargetModel, seed: int) -> list[StepSample]:
    """Every kernel class 0.3 times as slow, give or take a fifth, the host half as slow, 5 % of noise.

    What physics gets wrong on the TX2 it gets wrong here too.
    """
    draw = np.random.default_rng(seed)
    old = latency.far
    assert isinstance(old, PhysicalModel)
    cases = [one.case for one in samples]
    factors = 0.3 * np.exp(0.2 * draw.standard_normal(len(old.device_ms)))
    new = replace(
        old,
        device_ms=tuple(value * own for value, own in zip(old.device_ms, factors.tolist(), strict=True)),
        call_ms=0.5 * old.call_ms,
        step_ms=0.5 * old.step_ms,
    )
    ratio = new.predict(cases) / old.predict(cases) * np.exp(0.05 * draw.standard_normal(len(cases)))
    return [
        replace(one, latency_ms=(one.latency_ms or 0.0) * float(own))
        for one, own in zip(samples, ratio, strict=True)
    ]


def error(model: TargetModel, key: str, asked: list[StepSample]) -> float:
    truth = np.array([one.get_value(key) for one in asked], dtype=float)
    return float(np.abs(model.predict([one.case for one in asked]) / truth - 1).mean())


def held(model: TargetModel, key: str, asked: list[StepSample]) -> float:
    found = model.estimate_cases([one.case for one in asked])
    truth = np.array([one.get_value(key) for one in asked], dtype=float)
    return float(((found.lower <= truth) & (truth <= found.upper)).mean())


@pytest.mark.parametrize("count", [5, 10])
def test_a_few_samples_bring_latency_to_what_it_is_on_the_old_device(
    samples: list[StepSample], count: int
) -> None:
    latency = fit_method(samples, "latency", "physical")
    usual = error(latency, "latency_ms", samples)
    before, after, coverage = [], [], []
    for seed in range(4):
        new = second_device(samples, latency, seed)
        given = choose_spread(new, count)
        rest = [one for one in new if one not in given]
        made = transfer_target(latency, "latency", given)
        before.append(error(latency, "latency_ms", rest))
        after.append(error(made, "latency_ms", rest))
        coverage.append(held(made, "latency_ms", rest))
    print(
        f"{count} samples: latency {100 * np.mean(before):.0f} % before, {100 * np.mean(after):.1f} % after"
        f" (old device itself: {100 * usual:.1f} %), intervals hold {100 * np.mean(coverage):.0f} %"
    )
    assert np.mean(before) > 1.5
    assert np.mean(after) < usual + 0.1
    assert np.mean(coverage) > 0.85


def test_five_samples_find_the_constant_of_the_process(samples: list[StepSample]) -> None:
    memory = fit_method(samples, "memory", "physical")
    # beyond it the TX2 holds back: its memory is full, and where the new device's ends nobody has told
    room = [one for one in samples if (one.process_bytes or 0.0) < ROOM_BYTES]
    new = [replace(one, process_bytes=(one.process_bytes or 0.0) + CONSTANT_BYTES) for one in room]
    given = choose_spread(new, 5)
    rest = [one for one in new if one not in given]
    made = transfer_target(memory, "memory", given)
    old, found = error(memory, "process_bytes", rest), error(made, "process_bytes", rest)
    print(f"5 samples: memory {100 * old:.1f} % before, {100 * found:.1f} % after")
    assert found < 0.6 * old
    assert held(made, "process_bytes", rest) > 0.85
