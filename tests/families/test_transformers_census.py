"""The lines of transformers 5.22.2 at which two checks read the device 22 times in a step."""

from __future__ import annotations

import polars as pl
import pytest
import transformers

from census_runs import record_census
from transformers_detectors import make_batches, make_detector

FILE = "transformers/loss/loss_for_object_detection.py"


@pytest.mark.skipif(transformers.__version__ != "5.22.2", reason="lines of another version")
@pytest.mark.parametrize("name", ["rt_detr_v2", "d_fine"])
def test_lines_429_and_431_read_the_device_22_times(name, tmp_path):
    model = make_detector(name)
    table = record_census(model, make_batches(2), lambda batch: model(**batch).loss, tmp_path)
    found = table.filter((pl.col("file") == FILE) & (pl.col("kind") == "read"))
    assert sorted(zip(found["line"], found["count"], strict=True)) == [(429, 11), (431, 11)]
