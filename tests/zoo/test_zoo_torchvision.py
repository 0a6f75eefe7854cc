from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision.models import get_model_weights, mobilenet_v3_large, resnet50, vgg16
from torchvision.models.detection import backbone_utils, ssd, ssdlite
from torchvision.ops import FrozenBatchNorm2d
from zoo_samples import make_images, make_targets

from detscope import zoo
from detscope.errors import InputError, UsageError
from detscope.zoo import BuildOptions
from detscope.zoo.families._torchvision import (
    TorchvisionFamily,
    find_published,
    freeze_batch_norm,
    make_bare,
    train_only_last,
)
from detscope.zoo.registry import get_family

CARDS = [card for card in zoo.list_cards() if card.source == "torchvision"]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_the_cards_of_torchvision_models_are_true(card) -> None:
    family = get_family(card.family)
    assert isinstance(family, TorchvisionFamily)
    tuning = family.fine_tuning[card.name]
    with torch.device("meta"):  # shapes without the work of filling them
        module = make_bare(card.name, None)
        if tuning.frozen_norm:
            freeze_batch_norm(module.backbone.body, tuning.frozen_eps)
    assert sum(parameter.numel() for parameter in module.parameters()) == card.parameters
    assert get_model_weights(card.name).DEFAULT.meta["num_params"] == card.parameters
    transform = module.transform
    sizes = sorted({min(transform.min_size), max(transform.min_size)})
    text = "..".join(map(str, sizes))
    assert card.input_size == (text if transform.fixed_size else f"{text}-{transform.max_size}")


def _frozen(module: nn.Module) -> set[str]:
    return {name for name, parameter in module.named_parameters() if not parameter.requires_grad}


class Holder(nn.Module):
    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone


# torchvision's own freezing, by the private function each builder calls
EXTRACTORS = {
    "resnet": (5, lambda layers: backbone_utils._resnet_fpn_extractor(resnet50(), layers)),
    "mobilenet": (
        6,
        lambda layers: backbone_utils._mobilenet_extractor(mobilenet_v3_large(), True, layers),
    ),
    "vgg": (5, lambda layers: ssd._vgg_extractor(vgg16(), False, layers)),
    "ssdlite": (
        6,
        lambda layers: ssdlite._mobilenet_extractor(mobilenet_v3_large(), layers, nn.BatchNorm2d),
    ),
}


@pytest.mark.parametrize("kind", EXTRACTORS)
def test_trainable_layers_means_what_it_means_in_torchvision(kind) -> None:
    stages, extractor = EXTRACTORS[kind]
    for layers in range(stages + 1):
        with torch.device("meta"):
            theirs, ours = extractor(layers), extractor(stages)
        assert _frozen(ours) == set()
        train_only_last(Holder(ours), layers, kind)
        assert _frozen(ours) == _frozen(theirs), layers
    with pytest.raises(UsageError, match=f"has {stages} stages"):
        train_only_last(Holder(ours), stages + 1, kind)


def test_a_file_made_with_frozen_norms_gives_frozen_norms_and_fine_tuning_defaults(tmp_path) -> None:
    name = "fasterrcnn_mobilenet_v3_large_320_fpn"
    scratch = zoo.build_model(name, BuildOptions(weights="none"))
    assert scratch.notes and "from scratch" in scratch.notes[0]
    assert not any(isinstance(m, FrozenBatchNorm2d) for m in scratch.module.modules())
    state = {k: v for k, v in scratch.module.state_dict().items() if not k.endswith("num_batches_tracked")}
    save_file(state, tmp_path / "frozen.safetensors")
    built = zoo.build_model(name, BuildOptions(weights=str(tmp_path / "frozen.safetensors"), num_classes=4))
    body = built.module.backbone.body
    assert not any(isinstance(m, nn.BatchNorm2d) for m in body.modules())
    assert any(isinstance(m, FrozenBatchNorm2d) for m in body.modules())
    assert not body["0"][0].weight.requires_grad
    assert built.weights.replaced == (
        "roi_heads.box_predictor.cls_score",
        "roi_heads.box_predictor.bbox_pred",
    )
    assert not built.notes


def test_ssdlite320_trains_at_batch_2_and_really_fails_at_batch_1() -> None:
    built = zoo.build_model("ssdlite320_mobilenet_v3_large", BuildOptions(weights="none", num_classes=3))
    losses = built.module.train()(make_images(2), make_targets(2))
    assert all(torch.isfinite(loss) for loss in losses.values())
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        built.module(make_images(1), make_targets(1))


def test_ssd300_says_its_smallest_input_and_runs_there() -> None:
    with pytest.raises(UsageError, match="works from 268 pixels on"):
        zoo.build_model("ssd300_vgg16", BuildOptions(weights="none", image_size=267))
    options = BuildOptions(weights="none", image_size=268, num_classes=3)
    module = zoo.build_model("ssd300_vgg16", options).module
    with torch.no_grad():
        assert module.train()(make_images(1), make_targets(1))
        module.transform.fixed_size = (267, 267)
        with pytest.raises(RuntimeError, match="Kernel size"):
            module(make_images(1), make_targets(1))


def test_a_page_instead_of_the_published_weights_stops_the_build(tmp_path) -> None:
    card = zoo.get_card("ssdlite320_mobilenet_v3_large")
    name = find_published(card.name).file_name
    (tmp_path / name).write_text("<html>maintenance</html>")
    with pytest.raises(InputError, match=rf"{name}.*expected sha256 a79551df"):
        get_family("ssdlite").build_model(card, BuildOptions(cache_dir=str(tmp_path)))
    assert not (tmp_path / name).exists()


def test_auto_without_a_publisher_builds_with_random_weights_and_says_why(tmp_path) -> None:
    card = zoo.get_card("ssdlite320_mobilenet_v3_large")
    options = BuildOptions(cache_dir=str(tmp_path), num_classes=3)
    built = get_family("ssdlite").build_model(card, options, "http://127.0.0.1:9")
    assert built.weights.kind == "random"
    assert "127.0.0.1 cannot be reached" in built.weights.note
