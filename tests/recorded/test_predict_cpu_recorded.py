"""Latency on a CPU: a recorded sweep of five families and the microbench of the same machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from detscope.cli.main import app
from detscope.predict.layers.lists import read_layers
from detscope.predict.layers.model import LayerModel, LayerTable, choose_layers, fit_layers
from detscope.predict.layers.times import LayerTime, read_layer_times
from detscope.predict.models.older import fit_trees
from detscope.predict.samples import StepSample, read_samples

FOLDER = Path(__file__).parents[1] / "recorded_cpu"
WITH_STEPS, ALONE = 0.12, 0.20


@pytest.fixture(scope="module")
def samples() -> list[StepSample]:
    return read_samples(FOLDER / "measured.csv", read_layers(FOLDER / "layers.json"))


@pytest.fixture(scope="module")
def rows() -> list[LayerTime]:
    return read_layer_times(FOLDER / "microbench.csv")


@pytest.fixture(scope="module")
def table(rows: list[LayerTime]) -> LayerTable:
    return fit_layers(rows)


def error(predicted: np.ndarray, asked: Sequence[StepSample]) -> float:
    return float(np.abs(predicted / np.array([one.latency_ms for one in asked]) - 1).mean())


def split(samples: list[StepSample], family: str) -> tuple[list[StepSample], list[StepSample]]:
    return [one for one in samples if one.network != family], [
        one for one in samples if one.network == family
    ]


def families(samples: list[StepSample]) -> list[str]:
    return sorted({one.network for one in samples})


def test_forty_to_sixty_steps_of_five_families_were_recorded(samples: list[StepSample]) -> None:
    assert len(families(samples)) == 5
    assert 40 <= len(samples) <= 60
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 1_000_000


def test_a_family_left_out_is_predicted_within_twelve_per_cent_and_better_than_by_trees(
    samples: list[StepSample], table: LayerTable
) -> None:
    ours, trees = [], []
    for family in families(samples):
        kept, asked = split(samples, family)
        cases = [one.case for one in asked]
        ours.append(error(choose_layers(table, kept).predict(cases), asked))
        trees.append(error(fit_trees(kept, "latency_ms", count=50).predict(cases), asked))
    assert np.mean(ours) <= WITH_STEPS
    assert np.mean(ours) < np.mean(trees)


def test_layers_alone_predict_whole_networks_within_twenty_per_cent(
    samples: list[StepSample], table: LayerTable
) -> None:
    model = LayerModel(table)
    found = [
        error(model.predict([one.case for one in asked]), asked)
        for _, asked in (split(samples, family) for family in families(samples))
    ]
    assert np.mean(found) <= ALONE


def test_every_operation_of_the_five_families_was_measured_as_a_layer(
    samples: list[StepSample], table: LayerTable
) -> None:
    assert {kind for one in samples for kind in table.list_unseen_kinds(one.case.graph)} == set()


def test_score_uses_single_layers_where_it_is_given_them() -> None:
    files = (str(FOLDER / "measured.csv"), "--layer-times", str(FOLDER / "microbench.csv"))
    how = ("--target", "latency", "--method", "physical", "--protocol", "random-rows", "--json")
    result = CliRunner().invoke(app, ["score", *files, *how])
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout)["scores"]
    assert found["mean"] <= WITH_STEPS


def test_the_environment_lies_beside_and_names_no_path() -> None:
    text = (FOLDER / "environment.json").read_text()
    facts = json.loads(text)
    assert facts["torch_threads"] == facts["microbench"]["torch_threads"] == 1
    assert "/work" not in text
    assert "/tmp" not in text
