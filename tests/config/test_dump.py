from __future__ import annotations

import tempfile
import tomllib
from pathlib import Path

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from detscope.config.load import dump_settings, load_settings
from detscope.config.schema import (
    DataSettings,
    InferenceSettings,
    ModelSettings,
    RecordSettings,
    Settings,
    TrainingSettings,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
counts = st.integers(min_value=1, max_value=10**9)
positive = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)

training = st.builds(
    TrainingSettings,
    num_epochs=counts,
    steps=st.none() | counts,
    device=st.sampled_from(["auto", "cpu", "cuda", "cuda:11"]),
    precision=st.sampled_from(["fp32", "bf16", "fp16"]),
    channels_last=st.booleans(),
    pin_memory=st.none() | st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    learning_rate=positive,
    momentum=st.floats(0, 1, exclude_max=True),
)
settings = st.builds(
    Settings,
    training=training,
    model=st.builds(ModelSettings, name=texts, weights=texts, image_size=st.none() | st.integers(32, 4096)),
    data=st.builds(DataSettings, root=texts),
    inference=st.builds(InferenceSettings, images=st.lists(texts, max_size=3), score=st.floats(0, 1)),
    record=st.builds(RecordSettings, modules=st.sampled_from(["all", "leaf", "1", "42"])),
)


@hypothesis_settings(deadline=None)
@given(settings)
def test_dumped_settings_load_as_the_same_settings(wanted: Settings) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(dump_settings(wanted), encoding="utf-8", newline="")
        assert load_settings(path, [], {}).settings == wanted


def test_what_is_not_set_is_left_out() -> None:
    tables = tomllib.loads(dump_settings(Settings()))
    assert tables.keys() == {"training", "model", "data", "inference", "evaluation", "record", "output"}
    assert "steps" not in tables["training"]
    assert tables["training"]["batch_size"] == 2
