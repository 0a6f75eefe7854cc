from __future__ import annotations

import pytest
from torchvision.models.detection import roi_heads

from detscope.zoo.family import has_target
from detscope.zoo.registry import get_family

TOP = {
    "fasterrcnn": {"preprocess", "backbone", "fpn", "rpn", "roi_heads", "postprocess"},
    "retinanet": {"preprocess", "backbone", "fpn", "head", "anchors", "loss", "postprocess"},
    "ssd": {"preprocess", "backbone", "head", "anchors", "loss", "postprocess"},
    "efficientdet": {"preprocess", "backbone", "bifpn", "class_net", "box_net", "loss", "postprocess"},
}
TOP |= {"maskrcnn": TOP["fasterrcnn"], "keypointrcnn": TOP["fasterrcnn"]}
TOP |= {"fcos": TOP["retinanet"], "ssdlite": TOP["ssd"]}
FAMILIES = sorted(TOP)  # those whose stages are the same on all their models
ONLY_TRAINING = ("loss", "assign", "sample")
ONLY_INFERENCE = ("postprocess", "nms", "paste_masks")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_stage_of_the_family_exists_on_its_tiny_model(tiny, family) -> None:
    built = tiny(family)
    assert built.stages == get_family(family).stages
    assert {name.split(".")[0] for name in (s.name for s in built.stages) if name[0] != "."} == TOP[family]
    for stage in built.stages:
        assert has_target(built.module, stage.target), stage


@pytest.mark.parametrize("family", FAMILIES)
def test_every_stage_runs_where_it_should(tiny, watch, train_step, detect, family) -> None:
    built = tiny(family)
    targets = [stage.target for stage in built.stages]
    trained = set(watch(built.module, targets, lambda: train_step(built.module)))
    found = set(watch(built.module, targets, lambda: detect(built.module)))
    for stage in built.stages:
        part = stage.name.split(".")[-1]
        assert part in ONLY_INFERENCE or stage.target in trained, f"{stage} did not run in training"
        assert part in ONLY_TRAINING or stage.target in found or _needs_detections(stage.name), stage


def _needs_detections(name: str) -> bool:
    return name in ("roi_heads.mask.postprocess", "postprocess.paste_masks")


@pytest.mark.parametrize("family", FAMILIES)
def test_observers_read_counts_off_shapes(tiny, watch, train_step, detect, family) -> None:
    built = tiny(family)
    targets = [observer.target for observer in built.observers]

    def counts(seen: dict) -> dict[str, int]:
        return {
            name: value
            for observer in built.observers
            for output in seen.get(observer.target, [])
            for name, value in observer.read(output).items()
        }

    trained = counts(watch(built.module, targets, lambda: train_step(built.module)))
    outputs: list = []
    found = counts(watch(built.module, targets, lambda: outputs.extend(detect(built.module))))
    pixels = {"padded_pixels", "network_pixels"}
    rcnn = family.endswith("rcnn")
    assert set(trained) == pixels | ({"proposals", "sampled_rois"} if rcnn else set())
    assert set(found) == pixels | {"detections"} | ({"proposals"} if rcnn else set())
    assert found["detections"] == sum(len(one["boxes"]) for one in outputs)
    assert 0 < found["network_pixels"] <= found["padded_pixels"]
    assert all(type(value) is int for value in [*trained.values(), *found.values()])
    if rcnn:
        assert 0 < trained["sampled_rois"] <= 2 * 64


def test_a_stage_without_its_target_is_not_listed(tiny) -> None:
    names = {stage.name for stage in get_family("maskrcnn").find_stages(tiny("fasterrcnn").module)}
    assert "roi_heads.mask.pool" not in names
    assert "roi_heads.pool" in names


def test_targets_that_do_not_exist_do_not_resolve(tiny) -> None:
    module = tiny("fasterrcnn").module
    assert has_target(module, f"{roi_heads.__name__}:fastrcnn_loss")
    assert not has_target(module, f"{roi_heads.__name__}:no_such_loss")
    assert not has_target(module, "rpn.no_such_method()")
    assert not has_target(module, "no.such.module")
    assert not has_target(module, "rpn.box_coder")  # an attribute, but no module
