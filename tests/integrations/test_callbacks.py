"""A trainer's callback gives the run that `detscope run` gives of the same script."""

from __future__ import annotations

from pathlib import Path

import pytest

from detscope.integrations.recording import TrainerRecording
from detscope.sessions.run.watch import find_watch, watch
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


@pytest.mark.slow
def test_accelerate_s_plain_loop(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    found = check_callback_gives_the_same_run(tmp_path, HERE / "accelerate_training.py", "14")
    assert found["accumulated"]["per_step"] == 2
    assert found["accumulated"]["images_per_step"] == 4


def test_where_somebody_listens_already_a_callback_leaves_the_recording_to_it(tmp_path):
    with watch(out=tmp_path, quiet=True) as outer:
        recording = TrainerRecording(out=tmp_path, quiet=True)
        recording.begin("train")
        recording.end("train")
        assert find_watch() is outer
        assert recording.run is None
    assert find_watch() is None


def test_validation_inside_of_a_training_does_not_end_its_recording(tmp_path):
    recording = TrainerRecording(out=tmp_path, quiet=True)
    recording.begin("train")
    recording.begin("val")
    recording.end("val")
    assert find_watch() is not None
    recording.end("train")
    assert find_watch() is None
    assert recording.run is not None
    assert recording.run.parent == tmp_path


def test_training_again_is_another_run(tmp_path):
    recording = TrainerRecording(out=tmp_path, quiet=True)
    runs = set()
    for _ in range(2):
        recording.begin("train")
        recording.end(error=ValueError("the training raised"))
        runs.add(recording.run)
    assert len(runs) == 2
    assert None not in runs
