"""Models of Ultralytics' engine under `detscope run`: as typed, with their stages."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median

import polars as pl
import pytest
from generated_data import write_yolo_set
from watched_library import SCRIPTS, check_stages, find_steps, need_library, run_watched

from detscope.analyze.summary import RunSummary

need_library("ultralytics")

SMALL = ("epochs=1", "imgsz=64", "batch=2", "nbs=2")
STEPS = 12
LOSSES = "ultralytics.utils.loss"
# where a sleep is planted, and the stage that has to show it; each is called once per step of yolov8n
SLEEPS = {
    "ultralytics.models.yolo.detect.train:DetectionTrainer.preprocess_batch": "preprocess",
    "ultralytics.nn.modules.block:SPPF.forward": "backbone.9_sppf",
    "ultralytics.nn.modules.head:Detect.forward": "head",
    f"{LOSSES}:v8DetectionLoss.__call__": "loss",
    f"{LOSSES}:v8DetectionLoss.preprocess": "loss.targets",
    f"{LOSSES}:BboxLoss.forward": "loss.box",
    f"{LOSSES}:DFLoss.__call__": "loss.dfl",
    "torch.nn.modules.loss:BCEWithLogitsLoss.forward": "loss.class",
    "ultralytics.utils.tal:TaskAlignedAssigner.forward": "assigner",
    "ultralytics.utils.torch_utils:ModelEMA.update": "ema",
}
SLEEPS_OF_PREDICTIONS = {
    "ultralytics.engine.predictor:BasePredictor.preprocess": "preprocess",
    "ultralytics.nn.modules.head:Detect._inference": "head.decode",
    "ultralytics.models.yolo.detect.predict:DetectionPredictor.postprocess": "postprocess",
    "ultralytics.utils.nms:non_max_suppression": "postprocess.nms",
}


def write_data(folder: Path, task: str = "detect") -> Path:
    return write_yolo_set(folder / "data", task, train=2 * STEPS)


@pytest.mark.parametrize("model", ["yolov8n", "yolov10n", "yolo11n", "yolo12n", "yolo26n"])
def test_a_yolo_that_is_trained_by_the_command_as_typed_has_its_stages(tmp_path, model):
    data = write_data(tmp_path)
    summary = run_watched(tmp_path, "yolo", "detect", "train", f"model={model}.yaml", f"data={data}", *SMALL)
    stages = check_stages(summary, "ultralytics", rest=0.03)
    assert find_steps(summary, "training") == STEPS
    assert {"backbone", "neck", "neck.fusion_up", "neck.fusion_down", "head", "loss", "assigner"} <= set(
        stages
    )
    twice = model in ("yolov10n", "yolo26n")
    branches = ("head.one2many.box", "head.one2one.class") if twice else ("head.box", "head.class")
    assert set(branches) <= set(stages)
    assert ("loss.dfl" in stages) == (model != "yolo26n")
    order = [name for name in stages if "." not in name]
    assert order.index("backbone") < order.index("neck") < order.index("head") < order.index("loss")


@pytest.mark.parametrize(
    ("task", "model", "parts"),
    [
        ("segment", "yolo26n-seg", {"head.one2one.masks", "head.prototypes", "loss.masks", "loss.semantic"}),
        ("pose", "yolo26n-pose", {"head.one2many.keypoints", "head.one2many.sigma", "loss.keypoints"}),
        ("obb", "yolo11n-obb", {"head.angle", "loss.angle", "loss.decode"}),
    ],
)
def test_heads_for_masks_keypoints_and_oriented_boxes_have_their_branches(tmp_path, task, model, parts):
    data = write_data(tmp_path, task)
    summary = run_watched(tmp_path, "yolo", task, "train", f"model={model}.yaml", f"data={data}", *SMALL)
    stages = check_stages(summary, "ultralytics", rest=0.03)
    assert find_steps(summary, "training") == STEPS
    assert parts <= set(stages)


def test_rt_detr_of_the_engine_has_the_stages_of_a_detr(tmp_path):
    data = write_data(tmp_path)
    words = ("detect", "train", "model=rtdetr-l.yaml", f"data={data}", *SMALL)
    summary = run_watched(tmp_path, "yolo", *words)
    stages = check_stages(summary, "ultralytics_rtdetr", rest=0.03)
    assert find_steps(summary, "training") == STEPS
    assert summary.backward_attributed is not None
    assert summary.backward_attributed >= 0.99
    wanted = {"backbone", "input_projection", "encoder.layers", "encoder.fusion_up", "encoder.fusion_down"}
    wanted |= {"query_selection", "denoising", "heads", "matcher", "matcher.assignment", "loss.auxiliary"}
    wanted |= {f"decoder.layer_{number}.cross_attention" for number in range(6)}
    assert wanted <= set(stages)


@pytest.mark.parametrize(
    ("model", "ways", "parts"),
    [("yolov8n", (), {"head.decode"}), ("yolo26n", ("top_k",), {"head.one2one.box", "postprocess.top_k"})],
)
def test_a_script_that_predicts_has_the_stages_of_its_model(tmp_path, model, ways, parts):
    summary = run_watched(tmp_path, SCRIPTS / "predict_yolo.py", f"{model}.yaml", 48, *ways)
    stages = check_stages(summary, "ultralytics", rest=0.05)
    assert find_steps(summary, "evaluation") == 48
    assert {"backbone", "neck", "head", *parts} <= set(stages)
    assert not any("called directly" in note for note in summary.notes)


def find_growth(summary: RunSummary, known: str) -> dict[str, float]:
    """Milliseconds that each stage itself took more in steps in which a known one slept."""
    spans = pl.read_parquet(Path(summary.run) / "spans.parquet")
    chosen = spans.filter((pl.col("kind") == "stage") & (pl.col("direction") != "backward"))
    steps = [
        {row["path"]: row["self_ns"] / 1e6 for row in one.to_dicts()}
        for one in chosen.partition_by("step")
        if one["step"][0] > 1
    ]
    slow = [step for step in steps if step[known] > 8]
    quick = [step for step in steps if step[known] <= 8]
    assert min(len(slow), len(quick)) >= 5
    names = {name for step in steps for name in step}
    return {
        name: median(step.get(name, 0.0) for step in slow) - median(step.get(name, 0.0) for step in quick)
        for name in names
    }


def find_misplaced(grown: dict[str, float], slept: Iterable[str]) -> dict[str, float]:
    """Stages that slept and did not grow by ten milliseconds, and others that grew.

    A sleep that is told elsewhere would be 10 ms there; what follows one runs from cold caches.
    """
    where = set(slept)
    return {
        name: ms for name, ms in grown.items() if (abs(ms - 10) > 2 if name in where else abs(ms) > 5)
    } | dict.fromkeys(where - set(grown), 0.0)


def test_a_sleep_in_a_part_shows_there_and_nowhere_else(tmp_path):
    data = write_data(tmp_path)
    words = ("detect", "train", "model=yolov8n.yaml", f"data={data}", *SMALL, "epochs=4", "val=False")
    summary = run_watched(tmp_path, SCRIPTS / "sleep_in.py", *SLEEPS, "--", *words)
    assert find_misplaced(find_growth(summary, "assigner"), SLEEPS.values()) == {}


def test_a_sleep_in_a_part_of_a_prediction_shows_there_and_nowhere_else(tmp_path):
    words = (SCRIPTS / "predict_yolo.py", "yolov8n.yaml", 720)  # of which some are recorded
    summary = run_watched(tmp_path, SCRIPTS / "sleep_in.py", *SLEEPS_OF_PREDICTIONS, "--", *words)
    grown = find_growth(summary, "postprocess.nms")
    # in a loop without a loader a step ends where the model is called again: the next image is prepared in it
    grown["preprocess"] *= -1
    assert find_misplaced(grown, SLEEPS_OF_PREDICTIONS.values()) == {}
