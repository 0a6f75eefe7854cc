"""A trainer's callback gives the run that `detscope run` gives of the same script."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_runs import check_callback_gives_the_same_run

HERE = Path(__file__).parent


def test_transformers_trainer(tmp_path):
    pytest.importorskip("transformers")
    found = check_callback_gives_the_same_run(tmp_path, HERE / "hf_training.py", "14")
    assert found["accumulated"]["per_step"] == 4


def test_lightning_s_trainer(tmp_path):
    pytest.importorskip("lightning")
    found = check_callback_gives_the_same_run(tmp_path, HERE / "lightning_training.py", "11")
    assert found["accumulated"]["per_step"] == 2
