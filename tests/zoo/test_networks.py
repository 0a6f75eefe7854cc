from __future__ import annotations

import pytest
import torch

from detscope.errors import UsageError
from detscope.zoo.networks import find_base, leave_weights_unfilled, load_network


@pytest.mark.parametrize(
    ("name", "source", "kind"),
    [
        ("resnet18", "torchvision", "classifier"),
        ("timm/resnet18", "timm", "classifier"),
        ("regnety_002", "timm", "classifier"),
        ("tiny_ssd", "zoo", "detector"),
        ("faster-rcnn", "zoo", "detector"),
    ],
)
def test_a_name_says_where_a_network_comes_from(name: str, source: str, kind: str) -> None:
    base = find_base(name)
    assert (base.source, base.kind) == (source, kind)
    assert find_base(base.full_name) == base


@pytest.mark.parametrize(
    ("name", "hint"),
    [("resnet81", "resnet18"), ("timm/regnety_02", "timm/regnety_002"), ("nothing.py:make", "expected")],
)
def test_a_wrong_name_gets_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as problem:
        find_base(name)
    assert hint in problem.value.hint


@pytest.mark.parametrize(
    "name", ["squeezenet1_0", "timm/mobilenetv3_small_050", "tiny_maskrcnn", "tiny_keypointrcnn"]
)
def test_every_kind_of_network_trains_on_its_random_batch(name: str) -> None:
    network = load_network(name, seed=3)
    batch = network.random_batch(2)
    loss = network.loss(batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert any(bool(p.grad.abs().sum() > 0) for p in network.module.parameters() if p.grad is not None)
    assert network.parameters == sum(p.numel() for p in network.module.parameters())


def test_classifiers_see_224_pixels_and_detectors_their_own_size_unless_told() -> None:
    assert load_network("squeezenet1_0").example_input(3).shape == (3, 3, 224, 224)
    assert load_network("squeezenet1_0", image_size=64).example_input().shape == (1, 3, 64, 64)
    detector = load_network("tiny_fasterrcnn", image_size=96)
    assert [tuple(image.shape) for image in detector.example_input(2)] == [(3, 96, 96)] * 2
    assert detector.module.get_submodule("transform").min_size == (96,)


def test_the_same_seed_gives_the_same_weights_and_the_same_batch() -> None:
    one, same, other = (load_network("squeezenet1_1", seed=seed) for seed in (1, 1, 2))
    name = "features.0.weight"
    assert torch.equal(one.module.get_parameter(name), same.module.get_parameter(name))
    assert not torch.equal(one.module.get_parameter(name), other.module.get_parameter(name))
    assert torch.equal(one.random_batch(2, seed=5).targets, same.random_batch(2, seed=5).targets)


def test_the_side_classifiers_of_googlenet_are_part_of_its_loss() -> None:
    network = load_network("googlenet")
    batch = network.random_batch(2)
    network.loss(batch).backward()
    for part in ("aux1.fc2.weight", "aux2.fc2.weight", "fc.weight"):
        gradient = network.module.get_parameter(part).grad
        assert gradient is not None and bool(gradient.abs().sum() > 0), part


def test_a_batch_of_no_images_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one image"):
        load_network("tiny_ssd").random_batch(0)


def test_building_unfilled_draws_nothing_and_makes_the_same_shapes() -> None:
    before = torch.get_rng_state()
    with leave_weights_unfilled():
        bare = torch.nn.Linear(64, 64)
        torch.nn.init.trunc_normal_(bare.weight)
    assert torch.equal(before, torch.get_rng_state())
    assert bare.weight.shape == (64, 64)
    torch.nn.Linear(4, 4)
    assert not torch.equal(before, torch.get_rng_state())


def test_building_unfilled_ends_also_where_a_draw_is_repeated_until_it_fits() -> None:
    from torch.nn.init import trunc_normal_  # by name, as some models import it

    with leave_weights_unfilled():
        filled = trunc_normal_(torch.full((100,), torch.nan), a=-0.5, b=0.5)
        narrow = trunc_normal_(torch.full((100,), torch.nan), a=1.5, b=2.0)
    assert bool((filled.abs() <= 0.5).all()) and bool(((narrow >= 1.5) & (narrow <= 2)).all())


def test_the_labels_of_a_random_batch_are_classes_of_the_model() -> None:
    with leave_weights_unfilled():
        network = load_network("keypointrcnn_resnet50_fpn")
    assert network.num_classes == network.module.roi_heads.box_predictor.cls_score.out_features == 2
