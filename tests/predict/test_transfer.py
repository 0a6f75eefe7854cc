"""From an old device's model to a new device by a few samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_networks import made_samples

from detscope.errors import InputError
from detscope.predict.device.file import load_model, save_model
from detscope.predict.device.model import LEFT_OUT, DeviceModel, fit_device, transfer_device, transfer_target
from detscope.predict.models.methods import fit_method
from detscope.predict.models.physical import PhysicalModel
from detscope.predict.samples import StepSample, choose_spread
from detscope.predict.score import score_method, split_samples


def elsewhere(
    samples: list[StepSample], factor: float = 0.3, noise: float = 0.03, device: str = "new"
) -> list[StepSample]:
    """The same steps on a device that is faster by one factor and holds another constant."""
    draw = np.random.default_rng(0)
    return [
        replace(
            one,
            device=device,
            latency_ms=(one.latency_ms or 0.0) * factor * float(np.exp(noise * draw.standard_normal())),
            process_bytes=(one.process_bytes or 0.0) + 2.5e9,
        )
        for one in samples
    ]


@pytest.fixture(scope="module")
def old() -> DeviceModel:
    return fit_device(made_samples(), method="physical")


def errors(model: DeviceModel, target: str, asked: list[StepSample]) -> float:
    key = "latency_ms" if target == "latency" else "process_bytes"
    truth = np.array([one.get_value(key) for one in asked], dtype=float)
    return float(np.abs(model.targets[target].predict([one.case for one in asked]) / truth - 1).mean())


def test_five_samples_make_a_new_device_of_an_old_one(old: DeviceModel, tmp_path: Path) -> None:
    new = elsewhere(made_samples())
    given = choose_spread(new, 5)
    made = transfer_device(old, given, ["latency", "memory"])
    rest = [one for one in new if one not in given]
    assert errors(old, "latency", rest) > 2
    assert errors(made, "latency", rest) < 0.06
    assert errors(old, "memory", rest) > 0.5
    assert errors(made, "memory", rest) < 0.1
    said = made.targets["latency"].errors[LEFT_OUT]
    assert said["old device"] > 1 > said["physical, transferred"]
    save_model(made, tmp_path / "new.model")
    again = load_model(tmp_path / "new.model")
    cases = [one.case for one in rest]
    for target in ("latency", "memory"):
        assert again.targets[target].predict(cases) == pytest.approx(made.targets[target].predict(cases))


def test_intervals_are_wider_than_the_old_device_s_and_hold(old: DeviceModel) -> None:
    new = elsewhere(made_samples(), noise=0.05)
    made = transfer_target(old.targets["latency"], "latency", choose_spread(new, 6))
    assert made.far_width > old.targets["latency"].far_width
    assert made.near_width >= old.targets["latency"].near_width
    found = made.estimate_cases([one.case for one in new])
    truth = np.array([one.latency_ms for one in new])
    assert ((found.lower <= truth) & (truth <= found.upper)).mean() >= 0.9


def test_fewer_samples_and_worse_ones_give_wider_intervals(old: DeviceModel) -> None:
    source = old.targets["latency"]
    steady, noisy = elsewhere(made_samples(), noise=0.01), elsewhere(made_samples(), noise=0.2)
    widths = [
        transfer_target(source, "latency", choose_spread(samples, count)).far_width
        for samples, count in ((steady, 10), (noisy, 10), (noisy, 3))
    ]
    assert widths[0] < widths[1] < widths[2]


def test_the_host_has_a_factor_of_its_own(old: DeviceModel) -> None:
    """A device ten times as fast beside the same host: small batches stay as slow as they were."""
    physical = old.targets["latency"].far
    assert isinstance(physical, PhysicalModel)
    samples = made_samples()
    device, host = physical.split_parts([one.case for one in samples])
    new = [replace(one, latency_ms=max(0.2 * d, h)) for one, d, h in zip(samples, device, host, strict=True)]
    made = transfer_target(old.targets["latency"], "latency", choose_spread(new, 10))
    truth = np.array([one.latency_ms for one in new])
    assert float(np.abs(made.predict([one.case for one in new]) / truth - 1).mean()) < 0.2


def test_too_few_samples_and_trees_are_refused_in_one_line(old: DeviceModel) -> None:
    with pytest.raises(InputError, match="2 measured steps with latency"):
        transfer_target(old.targets["latency"], "latency", made_samples()[:2])
    trees = fit_method(made_samples(), "latency", "trees")
    with pytest.raises(InputError, match="by trees"):
        transfer_target(trees, "latency", made_samples()[:5])


def test_scoring_an_unseen_device_uses_the_other_and_asks_about_the_rest() -> None:
    first = [replace(one, device="first") for one in made_samples()]
    both = [*first, *elsewhere(made_samples(), device="second")]
    found = split_samples(both, "unseen-device")
    assert [split.name for split in found] == ["first", "second"]
    for split in found:
        assert {one.device for one in split.seen} != {split.name}
        assert {one.device for one in split.asked} == {split.name}
        assert (len(split.given), len(split.asked)) == (5, len(first) - 5)
    made = score_method(both, "latency", "unseen-device", "physical")
    assert made.mean < 0.1
    with pytest.raises(InputError, match="two devices"):
        split_samples(first, "unseen-device")
