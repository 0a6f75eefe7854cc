"""Models of other libraries by look-alikes: classes that say they are theirs, with the same layout."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from detscope.zoo.families.recognised._layout import find_parts
from detscope.zoo.registry import get_family, list_families, recognise_family, recognise_parts


def make_class(module: str, name: str, *bases: type) -> type:
    """A class that says it is of this library."""
    return type(name, bases or (nn.Module,), {"__module__": module})


def make_layer(name: str, index: int, source: object = -1) -> nn.Module:
    layer = make_class("ultralytics.nn.modules", name)()
    layer.i, layer.f = index, source
    return layer


Detect = make_class("ultralytics.nn.modules.head", "Detect")
Detect.postprocess = Detect._inference = lambda self: None


def make_head(name: str = "Detect", twice: bool = False, **more: nn.Module) -> nn.Module:
    head = (Detect if name == "Detect" else make_class("ultralytics.nn.modules.head", name, Detect))()
    for held in ("cv2", "cv3", *(("one2one_cv2", "one2one_cv3") if twice else ())):
        setattr(head, held, nn.ModuleList([nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1)]))
    for held, branch in more.items():
        setattr(head, held, branch)
    return head


BaseModel = make_class("ultralytics.nn.tasks", "BaseModel")
DetectionModel = make_class("ultralytics.nn.tasks", "DetectionModel", BaseModel)
RtDetr = make_class("ultralytics.nn.tasks", "RTDETRDetectionModel", DetectionModel)
NECK = (
    "Upsample",
    "Concat",
    "C2f",
    "Upsample",
    "Concat",
    "C2f",
    "Conv",
    "Concat",
    "C2f",
    "Conv",
    "Concat",
    "C2f",
)


def make_yolo(head: nn.Module, described: bool = True) -> nn.Module:
    model = DetectionModel()
    backbone = ("Conv", "C2f", "SPPF")
    layers = [make_layer(name, index) for index, name in enumerate((*backbone, *NECK))]
    model.model = nn.Sequential(*layers, head)
    if described:
        model.yaml = {"backbone": [[]] * len(backbone), "head": [[]] * (len(NECK) + 1)}
    return model


def name_targets(model: nn.Module) -> dict[str, str]:
    """Stages that are modules or methods of the model, by target."""
    _, stages, _ = recognise_parts(model)
    return {stage.target: stage.name for stage in stages if ":" not in stage.target}


@pytest.mark.parametrize("described", [True, False])
def test_layers_of_a_yolo_are_backbone_neck_and_head(described):
    model = make_yolo(make_head(), described)
    assert recognise_family(model).name == "ultralytics"
    found = name_targets(model)
    assert [found[f"model.{index}"] for index in range(3)] == [
        "backbone.0_conv",
        "backbone.1_c2f",
        "backbone.2_sppf",
    ]
    assert {found[f"model.{index}"] for index in range(3, 9)} == {"neck.fusion_up"}
    assert {found[f"model.{index}"] for index in range(9, 15)} == {"neck.fusion_down"}
    assert found["model.15"] == "head"
    assert found["model.15.cv2.0"] == found["model.15.cv2.1"] == "head.box"
    assert found["model.15.cv3.0"] == "head.class"
    assert found["model.15.postprocess()"] == "postprocess.top_k"


def test_a_head_that_is_trained_in_two_ways_has_each_branch_twice():
    found = name_targets(make_yolo(make_head(twice=True)))
    assert found["model.15.cv2.0"] == "head.one2many.box"
    assert found["model.15.one2one_cv3.1"] == "head.one2one.class"


@pytest.mark.parametrize(("kind", "word"), [("Segment", "masks"), ("Pose", "keypoints"), ("OBB", "angle")])
def test_the_fourth_branch_is_what_the_head_is_for(kind, word):
    head = make_head(kind, cv4=nn.ModuleList([nn.Identity()]), proto=nn.Identity())
    found = name_targets(make_yolo(head))
    assert found["model.15.cv4.0"] == f"head.{word}"
    assert found["model.15.proto"] == "head.prototypes"


def test_layers_of_rt_detr_are_those_of_a_hybrid_encoder():
    names = (
        "HGStem",
        "HGBlock",
        "Conv",
        "AIFI",
        "Conv",
        "Upsample",
        "Conv",
        "Concat",
        "RepC3",
        "Conv",
        "Concat",
    )
    sources = {6: 1, 7: [-2, -1], 10: [-1, 4]}
    model = RtDetr()
    layers = [make_layer(name, index, sources.get(index, -1)) for index, name in enumerate(names)]
    decoder = make_class("ultralytics.nn.modules.head", "RTDETRDecoder")()
    decoder.decoder = nn.Module()
    layer = nn.Module()
    layer.self_attn, layer.cross_attn = nn.Identity(), nn.Identity()
    decoder.decoder.layers = nn.ModuleList([layer])
    decoder.dec_score_head = nn.ModuleList([nn.Linear(1, 1)])
    model.model = nn.Sequential(*layers, decoder)
    model.yaml = {"backbone": [[], []]}
    assert recognise_family(model).name == "ultralytics_rtdetr"
    found = name_targets(model)
    assert found["model.2"] == found["model.6"] == "input_projection"
    assert found["model.3"] == "encoder.layers"
    assert found["model.4"] == found["model.7"] == found["model.8"] == "encoder.fusion_up"
    assert found["model.9"] == found["model.10"] == "encoder.fusion_down"
    assert found["model.11.decoder.layers.0.cross_attn"] == "decoder.layer_0.cross_attention"
    assert found["model.11.dec_score_head.0"] == "heads"


def test_losses_are_stages_only_where_their_library_is_loaded(monkeypatch):
    model = make_yolo(make_head())
    _, without, _ = recognise_parts(model)
    monkeypatch.setitem(sys.modules, "ultralytics.utils.tal", ModuleType("ultralytics.utils.tal"))
    assigner = make_class("ultralytics.utils.tal", "TaskAlignedAssigner")
    assigner.forward = lambda self: None
    sys.modules["ultralytics.utils.tal"].TaskAlignedAssigner = assigner
    _, with_assigner, _ = recognise_parts(model)
    assert "assigner" not in {stage.name for stage in without}
    assert "assigner" in {stage.name for stage in with_assigner}


def test_what_is_no_list_of_layers_is_not_taken_for_a_yolo():
    model = DetectionModel()
    model.model = nn.Linear(1, 1)
    assert recognise_family(model).name == "user"


def test_a_backbone_and_a_neck_of_libreyolo_have_their_children_as_parts():
    model = make_class("libreyolo.models.yolox.nn", "LibreYOLOXModel")()
    model.backbone, model.head = nn.Module(), nn.Module()
    model.backbone.backbone, model.backbone.C3_p4 = nn.Module(), nn.Identity()
    model.backbone.backbone.dark5 = nn.Identity()
    model.head.cls_convs = nn.ModuleList([nn.Identity()])
    assert recognise_family(model).name == "libreyolo_yolox"
    found = name_targets(model)
    assert found["backbone"] == "neck"
    assert found["backbone.backbone"] == "backbone"
    assert found["backbone.C3_p4"] == "neck.c3_p4"
    assert found["backbone.backbone.dark5"] == "backbone.dark5"
    assert found["head.cls_convs.0"] == "head.class"


def test_rf_detr_has_windows_a_projector_and_decoder_layers():
    model = make_class("rfdetr.models.lwdetr", "LWDETR")()
    backbone = nn.Module()
    backbone.projector = nn.Identity()
    model.backbone = nn.Sequential(backbone, nn.Identity())
    model.transformer = nn.Module()
    model.transformer.decoder = nn.Module()
    model.transformer.decoder.layers = nn.ModuleList([nn.Module()])
    model.class_embed = nn.Linear(1, 1)
    assert recognise_family(model).name == "rfdetr"
    found = name_targets(model)
    assert found["backbone.0.projector"] == "backbone.projector"
    assert found["transformer.decoder.layers.0"] == "decoder.layer_0"
    assert found["class_embed"] == "heads"


def test_a_star_stands_for_every_child_and_nothing_that_is_absent():
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Sequential(nn.Linear(1, 1)), nn.Sequential(nn.Linear(1, 1))])
    found = find_parts(
        model, [("layer_{}.part_{}", "layers.*.*"), ("none", "absent.*"), ("gone", "layers.7")]
    )
    assert {stage.target: stage.name for stage in found} == {
        "layers.0.0": "layer_0.part_0",
        "layers.1.0": "layer_1.part_0",
    }


def test_recognised_families_have_no_cards_and_import_nothing():
    names = {
        "ultralytics",
        "ultralytics_rtdetr",
        "libreyolo_yolo9",
        "libreyolo_yolox",
        "libreyolo_dfine",
        "rfdetr",
    }
    assert names <= {family.name for family in list_families()}
    assert all(not get_family(name).list_cards() for name in names)
    assert not {"ultralytics", "libreyolo", "rfdetr"} & set(sys.modules)


def test_a_part_that_a_constructor_tries_out_is_no_root():
    from detscope.record.script.roots import RootModels

    roots, seen = RootModels(), []

    class TriesOut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)
            seen.append(roots.is_tried_out(self.layer))

    model = TriesOut()
    assert seen == [True]
    assert not roots.is_tried_out(model.layer)
    assert torch.is_tensor(model.layer(torch.zeros(1, 1)))
