"""Host reads in a training step of transformers' detectors: 2 images of 5 boxes, auxiliary losses on."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from census_runs import count_kind, record_census
from transformers_detectors import NAMES, make_batches, make_detector

# read: a value; copy: the matchers' `.cpu()`; size: `nonzero` of denoising. Without `torch.equal`: see below
HOST_READS = {"rt_detr_v2": 32, "d_fine": 32, "deformable_detr": 13, "detr": 15, "yolos": 6}
MASKS = {"d_fine": 30}
# one call for every layer's matching and one for its boxes; RT-DETR's and D-FINE's have 3 layers, the
# encoder's queries and, for boxes alone, 3 of denoising; yolos has no auxiliary loss
CHECKS = {"rt_detr_v2": 11, "d_fine": 11, "deformable_detr": 4, "detr": 4, "yolos": 2}


@pytest.fixture(scope="module", params=NAMES)
def counted(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, pl.DataFrame]:
    model = make_detector(request.param)
    out = tmp_path_factory.mktemp("runs")
    return request.param, record_census(model, make_batches(2), lambda batch: model(**batch).loss, out)


def test_host_reads_are_counted(counted):
    name, table = counted
    equal = int(table.filter((pl.col("what") == "aten::equal") & (pl.col("kind") == "read"))["count"].sum())
    reads = count_kind(table, "read") - equal
    assert reads + count_kind(table, "copy") + count_kind(table, "size", masks=False) == HOST_READS[name]
    assert count_kind(table, "size", masks=True) == MASKS.get(name, 0)
    # `if torch.equal(pred_corners, target_corners)`, once for each of 2 layers before the last, the
    # queries' and 2 of denoising: it compares on the device and brings the answer to the host
    assert equal == (5 if name == "d_fine" else 0)


def test_the_two_checks_of_boxes_are_counted_apart(counted):
    name, table = counted
    checks = table.filter((pl.col("function") == "generalized_box_iou") & (pl.col("kind") == "read"))
    assert set(checks["file"]) == {"transformers/loss/loss_for_object_detection.py"}
    assert checks["count"].to_list() == [CHECKS[name]] * 2
    assert set(checks["around"]) == {"check"}
    texts = sorted(checks["code"].to_list())
    assert [text[:14] for text in texts] == ["if not (boxes1", "if not (boxes2"]
