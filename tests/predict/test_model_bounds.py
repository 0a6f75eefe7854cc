"""Device models from elsewhere: whatever their numbers say, they answer or are refused."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
from made_networks import made_samples

from detscope.errors import InputError
from detscope.predict.device.file import load_model, save_model
from detscope.predict.device.model import fit_device
from detscope.predict.layers.calls import call_features, classify_call, count_widths, roofline_terms
from detscope.predict.models.older import fit_trees


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("models") / "device.model"
    save_model(fit_device(made_samples(), method="hybrid"), path)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture(scope="module")
def forest() -> Any:
    return fit_trees(made_samples(1), "latency_ms", count=3).forest


def refusal(folder: Path, plain: dict[str, Any]) -> str:
    path = folder / "m.model"
    path.write_text(json.dumps(plain))
    with pytest.raises(InputError) as caught:
        load_model(path)
    return caught.value.message


def changed(plain: dict[str, Any], way: list[Any], value: Any) -> dict[str, Any]:
    copy = json.loads(json.dumps(plain))
    place = copy
    for key in way[:-1]:
        place = place[key]
    place[way[-1]] = value
    return copy


LATENCY = ["targets", "latency"]


@pytest.mark.parametrize(
    ("way", "value"),
    [
        ([*LATENCY, "reach", "centre"], [0.0] * 55),
        ([*LATENCY, "reach", "scale"], [0.0] * 56),
        ([*LATENCY, "reach", "places"], [[0.0] * 3]),
        ([*LATENCY, "reach", "radius"], float("nan")),
        ([*LATENCY, "near", "values", "residual", "weights"], [1.0]),
        ([*LATENCY, "near", "values", "residual", "places"], [[1.0]]),
        ([*LATENCY, "near", "values", "physical", "device_ms"], [1.0]),
        ([*LATENCY, "near", "values", "physical", "call_ms"], "fast"),
        ([*LATENCY, "near", "values", "physical", "tiles", "other"], 0),
        ([*LATENCY, "errors"], []),
        (["targets", "memory", "near", "values", "rule"], "mine"),
        (["targets", "memory", "near", "values", "process", "slope"], []),
        (["targets", "other"], {}),
        (["stage"], "playing"),
        (["limit_bytes"], "8 GiB"),
        (["rows"], 1e300),
    ],
)
def test_a_model_with_parts_of_another_width_or_kind_is_refused(
    tmp_path: Path, plain: dict[str, Any], way: list[Any], value: Any
) -> None:
    assert "is damaged" in refusal(tmp_path, changed(plain, way, value))


def with_forest(plain: dict[str, Any], packed: bytes) -> dict[str, Any]:
    trees = {"kind": "trees", "training": True, "forest": base64.b64encode(packed).decode()}
    return changed(plain, [*LATENCY, "near"], trees)


def repacked(forest: Any, change: Any) -> bytes:
    """The forest with the nodes of its first tree changed, as a stranger could write it."""
    from skops.io import dumps

    whole = BytesIO(dumps(forest))
    made = BytesIO()
    with ZipFile(whole) as source, ZipFile(made, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith(".npy"):
                values = np.load(BytesIO(content), allow_pickle=False)
                if values.dtype.names and "left_child" in values.dtype.names:
                    values = values.copy()
                    change(values)
                    kept = BytesIO()
                    np.save(kept, values)
                    content = kept.getvalue()
            target.writestr(name, content)
    return made.getvalue()


def lead_to_itself(nodes: Any) -> None:
    nodes["left_child"][0] = 0
    nodes["right_child"][0] = 0


def lead_back(nodes: Any) -> None:
    inner = np.flatnonzero(nodes["left_child"] >= 0)[-1]
    nodes["left_child"][inner] = 0


def test_a_forest_whose_tree_leads_to_itself_is_refused_before_it_is_asked(
    tmp_path: Path, plain: dict[str, Any], forest: Any
) -> None:
    for change in (lead_to_itself, lead_back):
        told = refusal(tmp_path, with_forest(plain, repacked(forest, change)))
        assert "leads outside of itself or back" in told


def test_a_forest_that_was_left_as_it_is_answers(tmp_path: Path, plain: dict[str, Any], forest: Any) -> None:
    path = tmp_path / "m.model"
    path.write_text(json.dumps(with_forest(plain, repacked(forest, lambda nodes: None))))
    assert load_model(path).targets["latency"].near_name


def test_a_forest_that_unpacks_to_more_than_its_limit_is_refused(
    tmp_path: Path, plain: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = BytesIO()
    with ZipFile(made, "w", ZIP_DEFLATED) as target:
        target.writestr("schema.json", b" " * 5_000_000)
    monkeypatch.setenv("DETSCOPE_LIMIT_DEVICE_MODEL_BYTES", "4000000")
    assert "unpacks to more" in refusal(tmp_path, with_forest(plain, made.getvalue()))


def test_the_widths_of_every_class_are_those_of_its_layers() -> None:
    from made_networks import chain

    from detscope.predict.layers.calls import list_calls

    for call in list_calls(chain(16), 4, training=True):
        if call.operation.kind in ("convolution", "relu"):
            name = classify_call(call, training=True)
            assert count_widths(name) == (len(roofline_terms(call)), len(call_features(call)))
