from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from made_networks import chain, made_samples

from detscope.errors import InputError, UsageError
from detscope.predict.answer import answer_questions
from detscope.predict.device.file import load_model, save_model
from detscope.predict.device.model import DeviceModel, fit_device
from detscope.predict.samples import StepCase

CASES = [StepCase(chain(40), 8), StepCase(chain(200, depth=7), 64)]


@pytest.fixture(scope="module")
def model() -> DeviceModel:
    return fit_device(made_samples(), method="hybrid")


@pytest.fixture
def file(model: DeviceModel, tmp_path: Path) -> Path:
    save_model(model, tmp_path / "device.model")
    return tmp_path / "device.model"


def test_a_model_says_the_same_after_it_was_stored(model: DeviceModel, file: Path) -> None:
    loaded = load_model(file)
    assert (loaded.fingerprint, loaded.rows, loaded.networks) == (
        model.fingerprint,
        75,
        ("net0", "net1", "net2"),
    )
    for target in ("memory", "latency"):
        one, other = (found.targets[target].estimate_cases(CASES) for found in (model, loaded))
        assert np.allclose(one.predicted, other.predicted)
        assert np.allclose(one.upper, other.upper)
        assert (one.extrapolated == other.extrapolated).all()


def test_trees_are_stored_without_a_pickle(tmp_path: Path) -> None:
    model = fit_device(made_samples(1), ["latency"], method="trees")
    save_model(model, tmp_path / "t.model")
    loaded = load_model(tmp_path / "t.model")
    assert np.allclose(model.targets["latency"].predict(CASES), loaded.targets["latency"].predict(CASES))


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_model(path)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value.message


class Trap:
    """Leaves a file behind where it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("sprung"),)  # type: ignore[return-value]


def test_a_pickle_is_refused_and_nothing_in_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.model").write_bytes(pickle.dumps(Trap()))
    assert "is a pickle" in refusal(Path("m.model"))
    assert not Path("sprung").exists()


def test_damaged_foreign_missing_and_other_versions_are_told_apart(file: Path) -> None:
    whole = file.read_text()
    for text, words in (
        (whole[: len(whole) // 2], "is damaged"),
        (whole.replace('"far_name"', '"far_nome"'), "is damaged"),
        ("\x00\x01 something else", "is not a device model"),
        ('{"a": 1}', "is not a device model"),
        (whole.replace('"version": 2', '"version": 7'), "version 7, this detscope reads 1 and 2"),
    ):
        file.write_text(text)
        assert words in refusal(file)
    assert "cannot read" in refusal(file.with_name("absent"))


def test_a_forest_with_a_strange_type_is_not_opened(tmp_path: Path) -> None:
    from skops.io import dumps

    path = tmp_path / "t.model"
    save_model(fit_device(made_samples(1), ["latency"], method="trees"), path)
    plain = json.loads(path.read_text())
    for strange, words in ((Trap(), "which no forest has"), ({"a": 1}, "where a forest should be")):
        plain["targets"]["latency"]["near"]["forest"] = base64.b64encode(dumps(strange)).decode()
        path.write_text(json.dumps(plain))
        assert words in refusal(path)
    plain["targets"]["latency"]["near"]["forest"] = "AAAA"
    path.write_text(json.dumps(plain))
    assert "is damaged" in refusal(path)


def test_an_answer_has_memory_by_category_latency_and_what_fits(model: DeviceModel) -> None:
    found = answer_questions(chain(64, name="net0"), [2, 8, 32], model, limit_bytes=1.6e9)
    assert [row["batch"] for row in found["rows"]] == [2, 8, 32]
    first = found["rows"][0]
    low, high = first["latency_ms_interval"]
    assert low <= first["latency_ms"] <= high
    assert first["allocated_bytes"] <= first["reserved_bytes"] < first["process_bytes"]
    assert first["categories"]["parameters"] > 0
    assert found["best_batch_for_throughput"] == 32
    assert found["cannot_tell"] == []


def test_without_a_device_model_memory_is_simulated_and_latency_cannot_be_told() -> None:
    found = answer_questions(chain(64), [4])
    assert found["cannot_tell"] == ["latency: no device model"]
    assert found["rows"][0]["latency_ms"] is None
    assert found["rows"][0]["allocated_bytes"] > 0
    row = found["rows"][0]
    assert (row["fits"], row["fits_why"]) == ("cannot tell", "no memory limit")


def test_a_batch_of_0_is_refused() -> None:
    with pytest.raises(UsageError, match="a batch of 0 images"):
        answer_questions(chain(8), [4, 0])
