"""Real networks pruned for real: levels, meaning, folders, and what is refused."""

from __future__ import annotations

import copy
import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from detscope.errors import InputError
from detscope.zoo.networks import Network, load_network
from detscope.zoo.pruning.folder import cuts_to_json, own_tensors, read_folder, write_folder
from detscope.zoo.pruning.graph import make_tracing_images, trace_outputs
from detscope.zoo.pruning.layers import find_layer, list_sides, list_widths
from detscope.zoo.pruning.plan import Mode, Plan
from detscope.zoo.pruning.pruner import Pruner, count_flops, is_identical
from detscope.zoo.weights import seed_weights

DETECTORS = ["fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet", "fcos", "ssd", "ssdlite", "efficientdet"]
CLASSIFIERS = [
    "squeezenet1_1",
    "mobilenet_v3_small",
    "regnet_y_400mf",
    "googlenet",
    "timm/convnext_atto",
    "timm/vit_tiny_patch16_224",
]
ALL = [f"tiny_{family}" for family in DETECTORS] + CLASSIFIERS


@functools.cache
def pruner_of(name: str, mode: Mode = "random", seed: int = 0) -> Pruner:
    network = load_network(name, seed=seed)
    stir(network.module)
    return Pruner(network, mode, seed)


def stir(module: torch.nn.Module) -> None:
    """Weights that carry the image to the outputs: fresh ones of many models let it fade on the way."""
    with seed_weights(11), torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                torch.nn.init.kaiming_normal_(parameter)
            else:
                parameter.uniform_(0.5, 1.0)


def keep(folder: Path, pruned: Network, plan: Plan) -> Path:
    base = pruned.base
    card = {
        "name": pruned.name,
        "base": {"name": base.name, "source": base.source, "kind": base.kind},
        "plan": cuts_to_json(plan.cuts),
    }
    folder.mkdir()
    write_folder(folder, pruned.module, card)
    return folder


@pytest.mark.parametrize("name", ALL)
def test_a_pruned_network_reaches_its_level_trains_and_comes_back_bit_by_bit(
    name: str, tmp_path: Path
) -> None:
    pruner = pruner_of(name)
    plan = pruner.plan_level(60)
    assert abs(plan.level_reached - 60) <= 1 and not plan.why_not
    pruned = pruner.prune_network(plan, "pruned")
    share = 100 * (1 - pruned.parameters / pruner.network.parameters)
    assert share == pytest.approx(plan.level_reached, abs=1e-9)
    folder = keep(tmp_path / "n", pruned, plan)
    loaded = load_network(folder)
    images = pruned.example_input(2, seed=4)
    assert is_identical(pruned.infer(images), loaded.infer(images))
    batch = pruned.random_batch(2, seed=4)
    losses = []
    for network in (pruned, loaded):
        with seed_weights(7):
            losses.append(network.loss(batch))
    assert torch.isfinite(losses[0]) and torch.equal(*losses)
    losses[1].backward()
    trained = [parameter.grad is not None for parameter in loaded.module.parameters()]
    assert (
        all(trained) or pruner.network.kind == "detector"
    )  # a detector's batch may leave a level without boxes
    assert any(trained)


OUTPUTS = {
    "tiny_fasterrcnn": [
        "rpn.head.cls_logits", "rpn.head.bbox_pred",
        "roi_heads.box_predictor.cls_score", "roi_heads.box_predictor.bbox_pred",
    ],
    "tiny_maskrcnn": ["roi_heads.mask_predictor.mask_fcn_logits"],
    "tiny_keypointrcnn": ["roi_heads.keypoint_predictor.kps_score_lowres"],
    "tiny_retinanet": ["head.classification_head.cls_logits", "head.regression_head.bbox_reg"],
    "tiny_ssd": ["head.classification_head.module_list.0", "head.regression_head.module_list.3"],
    "tiny_ssdlite": ["head.classification_head.module_list.0.1", "head.regression_head.module_list.5.1"],
    "tiny_efficientdet": ["model.class_net.predict.conv_pw", "model.box_net.predict.conv_pw"],
    "googlenet": ["fc", "aux1.fc2", "aux2.fc2"],
    "squeezenet1_1": ["classifier.1"],
}  # fmt: skip


@pytest.mark.parametrize("name", OUTPUTS)
def test_class_and_box_outputs_are_never_cut_and_all_parts_before_them_are(name: str) -> None:
    pruner = pruner_of(name)
    cuts = pruner.plan_level(60).cuts
    for layer in OUTPUTS[name]:
        assert "out" not in cuts[layer].removed, layer
        assert "in" in cuts[layer].removed, layer
    if name.startswith("tiny_"):
        for part in {name.split(".")[0] for name in list_widths(pruner.network.module)}:
            assert any(layer.startswith(part) for layer in cuts), part
    if name == "tiny_fasterrcnn":
        for layer in (
            "backbone.fpn.inner_blocks.0.0",
            "backbone.fpn.layer_blocks.3.0",
            "rpn.head.conv.0.0",
            "roi_heads.box_head.fc6",
        ):
            assert "out" in cuts[layer].removed, layer


@pytest.mark.parametrize(
    "name",
    [
        "squeezenet1_1",
        "googlenet",
        "mobilenet_v3_small",
        "regnet_y_400mf",
        "tiny_maskrcnn",
        "tiny_ssdlite",
        "tiny_efficientdet",
    ],
)
def test_cutting_a_channel_is_the_same_as_nobody_listening_to_it(name: str) -> None:
    """The uncut network, its weights that read removed channels zero, gives the cut one's outputs."""
    pruner = pruner_of(name)
    network = copy.deepcopy(pruner.network)
    plan = pruner.plan_level(40)
    deaf = network.module
    with torch.no_grad():
        for layer_name, layer_cut in plan.cuts.items():
            layer: Any = find_layer(deaf, layer_name)
            for axis in list_sides(layer)["in"].axes if "in" in layer_cut.removed else ():
                gone = torch.from_numpy(np.unique(axis.find_positions(layer_cut.removed["in"])))
                layer.weight.index_fill_(axis.dim, gone, 0.0)
        pruned = pruner.prune_network(plan, "pruned")
        images = torch.rand(make_tracing_images(network).shape, generator=torch.Generator().manual_seed(0))
        for one in (pruner.network, network, pruned):
            one.module.eval()
        whole, deafened, cut = (trace_outputs(one, images) for one in (pruner.network, network, pruned))
    assert len(deafened) == len(cut)
    assert all(agree(expected, found) for expected, found in zip(deafened, cut, strict=True))
    assert not any(agree(expected, found) for expected, found in zip(whole, cut, strict=True)), (
        "proves nothing"
    )


def agree(expected: torch.Tensor, found: torch.Tensor) -> bool:
    return torch.allclose(expected, found, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_a_higher_level_removes_what_a_lower_one_did_and_more() -> None:
    pruner = pruner_of("squeezenet1_1")
    lower, higher = pruner.plan_level(30).cuts, pruner.plan_level(60).cuts
    for name, layer in lower.items():
        for side, channels in layer.removed.items():
            assert set(channels.tolist()) <= set(higher[name].removed[side].tolist())


def test_level_0_is_the_network_itself() -> None:
    pruner = pruner_of("tiny_ssd")
    plan = pruner.plan_level(0)
    pruned = pruner.prune_network(plan, "same")
    assert not plan.cuts and pruned.parameters == pruner.network.parameters
    assert is_identical(own_tensors(pruned.module), own_tensors(pruner.network.module))
    assert count_flops(pruner.prune_network(pruner.plan_level(50), "half")) < count_flops(pruned)


def test_what_cannot_be_reached_is_said_with_what_can() -> None:
    # the group norms of its towers have two channels per group, and need them
    plan = pruner_of("tiny_fcos").plan_level(95)
    assert not any(layer.startswith("head.") and "out" in cut.removed for layer, cut in plan.cuts.items())
    assert plan.level_reached < 94 and f"{plan.level_reached:.1f} % is the most" in plan.why_not


def test_modes_and_seeds_choose_differently_and_the_same_seed_the_same() -> None:
    def widths(mode: Mode, seed: int) -> dict[str, list[int]]:
        pruner = Pruner(pruner_of("tiny_ssd").network, mode, seed)
        return list_widths(pruner.prune_network(pruner.plan_level(50), "n").module)

    found = [
        widths(mode, seed)
        for mode, seed in (("random", 0), ("random", 0), ("random", 1), ("l1", 0), ("weighted", 0))
    ]  # type: ignore[arg-type]
    assert found[0] == found[1]
    assert len({json.dumps(one) for one in found}) == 4


def test_l1_keeps_the_strongest_filters() -> None:
    network = load_network("tiny_ssd", seed=1)
    layer: Any = network.module.get_submodule("backbone.features.0")
    with torch.no_grad():
        layer.weight[5:9] *= 100
    removed = Pruner(network, "l1", 0).plan_level(90).cuts["backbone.features.0"].removed["out"].tolist()
    assert len(removed) > 15 and not set(removed) & {5, 6, 7, 8}


def test_pruning_leaves_the_network_it_started_from_alone() -> None:
    network = load_network("tiny_efficientdet")
    before = copy.deepcopy(own_tensors(network.module))
    modes = [part.training for part in network.module.modules()]
    pruner = Pruner(network, "random", 0)
    pruner.prune_network(pruner.plan_level(50), "n").loss(network.random_batch(2)).backward()
    assert is_identical(before, own_tensors(network.module))
    assert modes == [part.training for part in network.module.modules()]


@pytest.mark.parametrize("name", ["shufflenet_v2_x0_5"])
def test_a_network_that_cannot_be_followed_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(InputError, match="cannot be pruned: its dependency graph cannot be built") as problem:
        Pruner(load_network(name), "random", 0)
    assert "\n" not in problem.value.message


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    pruner = pruner_of("tiny_ssd")
    plan = pruner.plan_level(50)
    return keep(tmp_path / "stored", pruner.prune_network(plan, "stored"), plan)


def test_loading_a_folder_needs_no_pruning_library(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    network = load_network(str(stored), image_size=96)
    assert (network.name, network.kind, network.image_size) == ("stored", "detector", 96)
    assert network.card is not None and network.card["base"]["name"] == "tiny_ssd"


def change(stored: Path, **changes: Any) -> None:
    card = json.loads((stored / "network.json").read_text())
    (stored / "network.json").write_text(json.dumps(card | changes))


def flip_a_byte(stored: Path) -> None:
    weights = stored / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)


def forget_checksum(stored: Path) -> None:
    """Weights of another network, with a card that admits them."""
    import hashlib

    from safetensors.torch import save_file

    weights = stored / "weights.safetensors"
    save_file({"a": torch.zeros(2)}, weights)
    content = weights.read_bytes()
    change(stored, weights={"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})


DAMAGES = {
    "no card": (lambda at: (at / "network.json").unlink(), "is no network folder"),
    "no JSON": (lambda at: (at / "network.json").write_text("{"), "is damaged: it cannot be read as JSON"),
    "deep JSON": (lambda at: (at / "network.json").write_text("[" * 200_000), "is damaged"),
    "foreign": (lambda at: (at / "network.json").write_text('{"a": 1}'), "was not written by detscope prune"),
    "newer": (lambda at: change(at, version=99), "format version 99, this detscope knows up to 1"),
    "odd version": (lambda at: change(at, version="1"), "is damaged: its version"),
    "no weights": (lambda at: (at / "weights.safetensors").unlink(), "the file is missing"),
    "short weights": (lambda at: (at / "weights.safetensors").write_bytes(b"x" * 99), "99 bytes, expected"),
    "flipped bit": (flip_a_byte, "sha256"),
    "other weights": (forget_checksum, "tensors are missing or unknown"),
    "no plan": (lambda at: change(at, plan=None), "is damaged"),
    "odd plan": (lambda at: change(at, plan={"backbone.features.0": {"out": "x"}}), "no range of channels"),
    "plan of another": (lambda at: change(at, plan={"layer9": {"out": "0-3"}}), "does not fit tiny_ssd"),
    "plan too wide": (lambda at: change(at, plan={"backbone.features.0": {"out": "9000"}}), "does not fit"),
    "no such base": (
        lambda at: change(at, base={"name": "x", "source": "zoo", "kind": "detector"}),
        "is no model's name",
    ),
    "code as base": (
        lambda at: change(at, base={"name": "os:abort", "source": "user", "kind": "detector"}),
        "a detector of user is not known",
    ),
    "code as zoo": (
        lambda at: change(at, base={"name": "os:abort", "source": "zoo", "kind": "detector"}),
        "is no model's name",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_foreign_or_newer_folder_is_one_clear_line(damage: str, stored: Path) -> None:
    spoil, words = DAMAGES[damage]
    spoil(stored)
    with pytest.raises(InputError) as problem:
        load_network(stored)
    assert words in problem.value.message and "\n" not in problem.value.message
    assert problem.value.hint


def test_a_folder_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no network folder"):
        read_folder(tmp_path / "nothing")
