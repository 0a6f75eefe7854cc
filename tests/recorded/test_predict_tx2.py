"""Prediction on what was measured on a Jetson TX2: a part of the figures that `make bench-predict` prints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from detscope.ingest.unpickle import load_plain
from detscope.predict.layers.graph import LayerGraph
from detscope.predict.layers.lists import read_layers
from detscope.predict.memory.allocator import replay_snapshot
from detscope.predict.memory.model import fit_memory, keep_outcomes, learn_limit, simulate_bytes
from detscope.predict.models.older import fit_trees
from detscope.predict.models.physical import choose_physical
from detscope.predict.samples import StepSample, keep_measured, read_samples
from detscope.predict.score import split_samples
from detscope.sweep.exchange import import_older
from detscope.sweep.store import read_rows

SOME_BATCHES = (16, 64, 128, 200, 256)


@pytest.fixture(scope="module")
def graphs(recorded: Path) -> dict[tuple[str, int], LayerGraph]:
    return read_layers(recorded / "prediction/tx2/layers.json")


@pytest.fixture(scope="module")
def samples(recorded: Path, graphs: dict[tuple[str, int], LayerGraph]) -> list[StepSample]:
    return read_samples(recorded / "prediction/tx2/measured.csv", graphs)


def errors(asked: list[StepSample], target: str, predicted: np.ndarray) -> dict[str, float]:
    truth = np.array([one.get_value(target) for one in asked])
    names = np.array([one.network for one in asked])
    found = 100 * np.abs(predicted / truth - 1)
    return {str(name): float(found[names == name].mean()) for name in np.unique(names)}


def mean(found: dict[str, float]) -> float:
    return float(np.mean(list(found.values())))


def test_the_older_method_is_reproduced_on_unseen_levels(samples: list[StepSample]) -> None:
    for target, wanted in (("process_bytes", 4.2), ("latency_ms", 6.0)):
        (split,) = split_samples(keep_measured(samples, target), "unseen-levels")
        predicted = fit_trees(split.seen, target).predict([one.case for one in split.asked])
        assert mean(errors(split.asked, target, predicted)) == pytest.approx(wanted, abs=0.7)


def test_peaks_of_unpruned_networks_are_simulated_without_any_sample(samples: list[StepSample]) -> None:
    known = [one for one in keep_measured(samples, "allocated_bytes") if one.level == 0]
    truth = np.array([one.allocated_bytes for one in known])
    reserved = np.array([one.reserved_bytes for one in known])
    allocated, held = simulate_bytes([one.case for one in known])
    found = 100 * np.abs(allocated / truth - 1)
    assert (len(known), found.mean() <= 2, np.median(found) <= 1) == (48, True, True)
    assert 100 * np.abs(held / reserved - 1).mean() <= 4


def test_latency_of_networks_that_were_never_seen(samples: list[StepSample]) -> None:
    found: dict[str, float] = {}
    for split in split_samples(keep_measured(samples, "latency_ms"), "unseen-networks"):
        predicted = choose_physical(split.seen).predict([one.case for one in split.asked])
        found |= errors(split.asked, "latency_ms", predicted)
    assert mean(found) <= 12.5


def test_memory_of_networks_that_were_never_seen(samples: list[StepSample]) -> None:
    some = [one for one in keep_measured(samples, "process_bytes") if one.case.batch in SOME_BATCHES]
    found: dict[str, float] = {}
    for split in split_samples(some, "unseen-networks"):
        model = fit_memory(split.seen, hybrid=False)
        found |= errors(split.asked, "process_bytes", model.predict([one.case for one in split.asked]))
    assert mean(found) <= 7.5


def test_what_fits_is_told_with_a_limit_learnt_from_other_networks(
    recorded: Path, graphs: dict[tuple[str, int], LayerGraph], samples: list[StepSample]
) -> None:
    outcomes = keep_outcomes(read_samples(recorded / "prediction/tx2/memory_with_oom.csv", graphs))
    outcomes = [one for one in outcomes if one.case.batch in SOME_BATCHES]
    some = [one for one in keep_measured(samples, "process_bytes") if one.case.batch in SOME_BATCHES]
    right: list[bool] = []
    for split in split_samples(outcomes, "unseen-networks"):
        model = fit_memory([one for one in some if one.network != split.name], hybrid=False)
        limit = learn_limit(
            model.predict_unbounded([one.case for one in split.seen]), [one.passed for one in split.seen]
        )
        predicted = model.predict_unbounded([one.case for one in split.asked])
        right += [(value <= limit) == one.passed for value, one in zip(predicted, split.asked, strict=True)]
    assert np.mean(right) >= 0.93


def test_the_allocator_reserves_what_a_recorded_history_reserved(recorded: Path) -> None:
    snapshot = load_plain((recorded / "traces/snapshot/memory_snapshot.pickle").read_bytes())
    found = replay_snapshot(snapshot)
    assert (found.recorded_bytes, found.events) == (4238344192, 6486)
    assert abs(found.relative_error) <= 0.02


def test_the_recorded_figures_of_the_tx2_come_into_a_store(recorded: Path, tmp_path: Path) -> None:
    measured = recorded / "prediction/tx2/measured.csv"
    done = import_older([measured], tmp_path / "tx2.db", "tx2", "training")
    assert done["rows"] == 2 * (len(measured.read_text().splitlines()) - 1)
    found = {
        (row["network"], row["batch_size"], row["variables"]): row for row in read_rows(tmp_path / "tx2.db")
    }
    assert found["mnasnet_0", 2, "memory"]["allocated_bytes"] == round(128.8171875 * 2**20)
    assert found["mnasnet_0", 2, "latency"]["step_ms"] == pytest.approx(128.68849182128906)
