"""Recording an inference changes nothing: not the detections, and nothing stays on model or library."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

from detscope.loops.infer import InferPlan, detect_objects
from detscope.record.memory.allocations import measure_allocations
from detscope.record.recorder import Recorder
from detscope.zoo.contract import BuildOptions
from detscope.zoo.registry import build_model

TINY = ("fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet", "fcos", "ssd", "ssdlite", "efficientdet")
WATCHED = ("torchvision", "effdet", "timm", "torch.nn.modules", "torch.autograd", "detscope.zoo")


def images() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(3, 100, 140, generator=generator), torch.rand(3, 120, 90, generator=generator)]


def everything(model: nn.Module) -> dict[str, Any]:
    """What could be patched: attributes and hooks of modules, members of their classes and of libraries."""
    seen: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            # plain values may change: torchvision's anchors are moved to the device in every pass
            kept = id(value) if callable(value) else type(value)
            seen[f"module {path}.{name}"] = dict(value) if isinstance(value, dict) else kept
        for owner in type(module).__mro__:
            seen[f"class {owner.__qualname__}"] = dict(vars(owner))
    for name, library in list(sys.modules.items()):
        if name.startswith(WATCHED):
            seen[f"library {name}"] = {
                key: id(value) for key, value in vars(library).items() if callable(value)
            }
    return seen


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Places that differ."""
    return [place for place in before.keys() | after.keys() if not _same(before.get(place), after.get(place))]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            one[key] is other[key] or _equal(one[key], other[key]) for key in one
        )
    return bool(one == other)


def _equal(one: Any, other: Any) -> bool:
    return type(one) in (int, str, bool) and one == other


@pytest.mark.parametrize("family", TINY)
def test_detections_are_bit_identical_and_nothing_stays_behind(family, tmp_path):
    built = build_model(f"tiny_{family}", BuildOptions(weights="none"))
    model, plan = built.module.eval(), InferPlan()
    if hasattr(model, "roi_heads"):  # a hundred, each with its mask or keypoints, are seconds in every pass
        model.roi_heads.detections_per_img = 20
    plain = detect_objects(model, images(), plan)
    before = everything(model)
    recorder = Recorder(
        model,
        out=tmp_path,
        level="ops",
        stages=built.stages,
        observers=built.observers,
        warmup_steps=1,
        ops_steps=1,
        telemetry_hz=0,
    )
    outputs = []
    with recorder:
        for batch in recorder.steps([(images(), [0, 1])] * 6):
            outputs.append(detect_objects(model, batch[0], plan))
            recorded = recorder.schedule.mode_of(recorder.steps_done) == "recorded"
            assert bool(changes(before, everything(model))) or not recorded, "the comparison sees probes"
    measure_allocations(model, [lambda: outputs.append(detect_objects(model, images(), plan))], built.stages)
    assert len(outputs) == 7
    for output in outputs:
        for found, wanted in zip(output, plain, strict=True):
            assert found.keys() == wanted.keys()
            assert all(torch.equal(found[key], wanted[key]) for key in wanted)
    assert changes(before, everything(model)) == []
