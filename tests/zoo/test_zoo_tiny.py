from __future__ import annotations

import pytest
import torch
from zoo_samples import HEIGHT, WIDTH, make_images, make_targets

from detscope import zoo
from detscope.errors import UsageError
from detscope.zoo import BuildOptions

FAMILIES = [card.name.removeprefix("tiny_") for card in zoo.list_cards("tiny_*")]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_training_step_has_finite_losses_and_reaches_every_parameter(tiny, train_step, family) -> None:
    module = tiny(family).module
    module.zero_grad()
    losses = train_step(module)
    assert losses and all(torch.isfinite(loss) and loss.dim() == 0 for loss in losses.values())
    sum(losses.values()).backward()
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:  # D-FINE has two numbers that never train
            assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("family", FAMILIES)
def test_evaluation_gives_detections_inside_the_image(tiny, detect, family) -> None:
    found = detect(tiny(family).module)
    assert len(found) == 2
    for one in found:
        count = len(one["boxes"])
        assert one["boxes"].shape == (count, 4)
        assert one["labels"].shape == one["scores"].shape == (count,)
        assert one["labels"].dtype == torch.int64
        x0, y0, x1, y1 = one["boxes"].unbind(1)
        assert (x0 >= 0).all() and (y0 >= 0).all()
        assert (x1 <= WIDTH + 0.01).all() and (y1 <= HEIGHT + 0.01).all()
        assert ((one["labels"] >= 1) & (one["labels"] <= 2)).all()
        if family == "maskrcnn":
            assert one["masks"].shape == (count, 1, HEIGHT, WIDTH)
        if family == "keypointrcnn":
            assert one["keypoints"].shape == (count, 17, 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_weights_and_leaves_the_callers_random_state(family) -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    first, again, other = (
        zoo.build_model(f"tiny_{family}", BuildOptions(seed=seed)).module.state_dict() for seed in (7, 7, 8)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_card_tells_the_truth(tiny, train_step, family) -> None:
    card = zoo.get_card(f"tiny_{family}")
    built = zoo.build_model(card.name)
    assert sum(parameter.numel() for parameter in built.module.parameters()) == card.parameters
    train_step(tiny(family).module, batch=card.min_train_batch)
    if card.min_train_batch > 1:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            train_step(tiny(family).module, batch=card.min_train_batch - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_image_without_objects_trains(tiny, family) -> None:
    targets = make_targets(2)
    for name, value in targets[1].items():
        targets[1][name] = value[:0]
    losses = tiny(family).module.train()(make_images(2), targets)
    assert all(torch.isfinite(loss) for loss in losses.values())


def test_tiny_models_never_download_and_say_that_random_weights_matter(tiny) -> None:
    weights = tiny("fasterrcnn").weights
    assert weights.kind == "random"
    assert "no published weights" in weights.note and "NMS load" in weights.note
    with pytest.raises(UsageError, match="no published COCO weights"):
        zoo.build_model("tiny_fasterrcnn", BuildOptions(weights="coco"))


@pytest.mark.parametrize("family", FAMILIES)
def test_image_size_changes_what_the_network_sees(watch, detect, family) -> None:
    built = zoo.build_model(f"tiny_{family}", BuildOptions(image_size=96))
    targets = [observer.target for observer in built.observers]
    seen = watch(built.module, targets, lambda: detect(built.module))
    counts = {}
    for observer in built.observers:
        for output in seen[observer.target]:
            counts |= observer.read(output)
    # 100 x 140 pixels: long side 96 x 160 / 128 = 120, a square of 96, or long side 96
    squares = dict.fromkeys(("ssd", "ssdlite", "rtdetr", "dfine"), 96 * 96) | {"efficientdet": 68 * 96}
    assert counts["network_pixels"] == 2 * squares.get(family, 85 * 120)
    padded = 85 * 120 if family == "detr" else 96 * 128  # no more than the largest image, or to whole strides
    assert counts["padded_pixels"] == 2 * (96 * 96 if family in squares else padded)


def test_trainable_layers_freezes_the_early_backbone() -> None:
    module = zoo.build_model("tiny_fasterrcnn", BuildOptions(trainable_layers=2)).module
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert "backbone.body.layer3.0.conv1.weight" in trained
    assert not any(name.startswith(("backbone.body.conv1", "backbone.body.layer2")) for name in trained)
    with pytest.raises(UsageError, match="has 5 stages"):
        zoo.build_model("tiny_fasterrcnn", BuildOptions(trainable_layers=6))
    with pytest.raises(UsageError, match="does not know trainable_layers"):
        zoo.build_model("tiny_efficientdet", BuildOptions(trainable_layers=1))
