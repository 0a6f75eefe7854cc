"""Figures step by step: what a view draws over time."""

from pathlib import Path

from detscope.analyze.step.series import step_points
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter

MS = 10**6


def recorded(parent: Path, verb: str) -> dict[tuple[int, str, str], float]:
    """A warm-up step and a measured one of 100 ms with nested stages, as points by step, group and name."""
    writer = RunWriter(parent, verb, "small", {"device": "cpu"})
    for step, mode in ((0, "warmup"), (1, "recorded")):
        parts = {"step": 100, "data": 30, "forward": 60, "other": 10}
        writer.append_rows("steps", [(step, 0, mode, phase, 0, ms * MS, None) for phase, ms in parts.items()])
        stages = {"rpn": 5, "rpn.nms": 20, "backbone": 25, "": 10}
        writer.append_rows(
            "spans",
            [(step, "stage", path, "forward", 1, 0, ms * MS, None, None) for path, ms in stages.items()],
        )
        writer.append_rows("images", [(step, 0, "a.jpg", 64, 48, 7 if step else None, None)])
    writer.close_run("ok")
    points = list(step_points(load_run(writer.folder)))
    return {(point.step, point.group, point.name): point.value for point in points}


def test_a_stage_holds_its_parts_and_the_rest_has_a_name(tmp_path: Path) -> None:
    points = recorded(tmp_path, "train")
    stages = {name: value for (step, group, name), value in points.items() if group == "stages_ms"}
    assert stages == {"rpn": 25, "rpn.nms": 20, "backbone": 25, "(rest of the model)": 10}
    assert points[1, "phases_ms", "data"] == 30


def test_stages_of_inference_begin_with_the_file_and_add_up_to_the_image(tmp_path: Path) -> None:
    points = recorded(tmp_path, "infer")
    stages = {name: value for (step, group, name), value in points.items() if group == "stages_ms"}
    assert stages == {"decode": 30, "rpn": 25, "rpn.nms": 20, "backbone": 25, "other": 20}
    assert sum(value for name, value in stages.items() if "." not in name) == points[1, "steps_ms", "step"]


def test_warm_up_steps_are_apart_and_unknown_counts_are_absent(tmp_path: Path) -> None:
    points = recorded(tmp_path, "infer")
    assert {(group, name) for step, group, name in points if step == 0} == {("warmup_ms", "step")}
    assert points[1, "content", "detections"] == 7
