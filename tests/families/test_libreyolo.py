"""Detectors of libreyolo under `detscope run`."""

from __future__ import annotations

import pytest
from generated_data import write_yolo_set
from watched_library import SCRIPTS, check_stages, find_steps, need_library, run_watched

need_library("libreyolo")

YOLO_PARTS = {
    "backbone",
    "neck",
    "head",
    "head.box",
    "head.class",
    "assigner",
    "loss",
    "loss.box",
    "loss.class",
}
DETR_PARTS = {
    "backbone.stage_0",
    "input_projection",
    "encoder.layers",
    "encoder.fusion_up",
    "encoder.fusion_down",
    "query_selection",
    "denoising",
    "decoder.layer_0.self_attention",
    "heads",
    "matcher.cost",
    "matcher.assignment",
    "loss.box",
}


@pytest.mark.parametrize(
    ("kind", "size", "side", "parts"),
    [
        ("yolo9", "t", 64, YOLO_PARTS | {"loss.dfl", "backbone.elan4", "neck.elan_up1"}),
        ("yolox", "n", 64, YOLO_PARTS | {"head.objectness", "backbone.dark5", "neck.c3_p4"}),
        ("dfine", "n", 320, DETR_PARTS | {"loss.local"}),
    ],
)
def test_a_detector_of_libreyolo_has_its_stages(tmp_path, kind, size, side, parts):
    data = write_yolo_set(tmp_path / "data", train=16)
    summary = run_watched(tmp_path, SCRIPTS / "train_libreyolo.py", kind, size, side, data)
    stages = check_stages(summary, f"libreyolo_{kind}", rest=0.03)
    assert find_steps(summary, "training") == 8
    assert summary.images_per_s is not None
    assert parts <= set(stages)
