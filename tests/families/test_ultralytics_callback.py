"""Ultralytics' callbacks give the run that `detscope run` gives of the same script."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_runs import check_callback_gives_the_same_run

pytest.importorskip("ultralytics")


def test_a_training_that_records_itself(tmp_path):
    script = Path(__file__).with_name("yolo_training.py")
    found = check_callback_gives_the_same_run(tmp_path, script, "28")
    assert found["batch_size"] == 2
    assert found["content"]["boxes_per_image"] > 0
