"""RF-DETR in its own trainer under `detscope run`."""

from __future__ import annotations

from generated_data import write_coco_set
from watched_library import SCRIPTS, check_stages, find_steps, need_library, run_watched

need_library("rfdetr")
need_library("pytorch_lightning")


def test_rf_detr_has_windows_projector_decoder_matcher_and_loss(tmp_path):
    data = write_coco_set(tmp_path / "data", train=16)
    summary = run_watched(tmp_path, SCRIPTS / "train_rfdetr.py", data)
    stages = check_stages(summary, "rfdetr", rest=0.03)
    assert find_steps(summary, "training") == 8
    assert summary.images_per_s is not None
    wanted = {"backbone.windows.layer_0", "backbone.projector", "query_selection", "heads"}
    wanted |= {"decoder.layer_0.cross_attention", "decoder.layer_1.feed_forward"}
    wanted |= {"matcher.cost", "matcher.assignment", "loss", "loss.class", "loss.box"}
    assert wanted <= set(stages)
