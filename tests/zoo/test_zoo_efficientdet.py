from __future__ import annotations

import warnings

import pytest
import torch
from zoo_samples import make_images, make_targets

from detscope import zoo
from detscope.errors import UsageError
from detscope.zoo import BuildOptions
from detscope.zoo.families.efficientdet import find_config, quiet_effdet

SOME = ["efficientdet_d0", "efficientdet_lite0", "tf_efficientdet_d1_ap", "tf_efficientdet_lite3x"]


@pytest.mark.parametrize("name", [*SOME, "tf_efficientdet_d7x"])
def test_the_cards_of_efficientdets_are_true(name) -> None:
    with quiet_effdet():
        from effdet import EfficientDet
    card, config = zoo.get_card(name), find_config(name)
    with torch.device("meta"):
        network = EfficientDet(config, pretrained_backbone=False)
    assert sum(parameter.numel() for parameter in network.parameters()) == card.parameters
    assert card.input_size == str(config.image_size[0])
    assert (card.weights_licence != "none") == bool(config.url)
    assert card.single_pixel_size == 2**config.max_level


def test_every_card_agrees_with_effdet_on_size_and_weights() -> None:
    for card in zoo.list_cards():
        if card.source == "effdet":
            config = find_config(card.name)
            assert card.input_size == str(config.image_size[0]), card.name
            assert (card.weights_licence != "none") == bool(config.url), card.name


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return zoo.build_model("tiny_efficientdet", BuildOptions(num_classes=3)).module


def test_boxes_follow_their_image_into_the_square(model) -> None:
    images, targets = [torch.rand(3, 100, 200), torch.rand(3, 256, 64)], make_targets(2)
    prepared = model.preprocess(images, targets)
    assert prepared.tensors.shape == (2, 3, 128, 128)
    assert prepared.image_sizes == [(64, 128), (128, 32)]
    assert prepared.scales == [0.64, 0.5]
    x0, y0, x1, y1 = targets[0]["boxes"][1].tolist()
    expected = torch.tensor([y0, x0, y1, x1]) * 0.64
    torch.testing.assert_close(prepared.boxes[0][1], expected)
    assert prepared.tensors[0, :, 64:].abs().sum() == 0
    assert prepared.tensors[1, :, :, 32:].abs().sum() == 0


def test_perfect_outputs_give_back_the_targets_in_original_pixels(model) -> None:
    images = [torch.rand(3, 100, 200), torch.rand(3, 256, 140)]
    targets = make_targets(2)
    prepared = model.preprocess(images, targets)
    class_targets, box_targets, positives = model.assign_anchors(prepared)
    assert (positives > 0).all()
    class_outputs, box_outputs = [], []
    for classes, boxes in zip(class_targets, box_targets, strict=True):
        hot = torch.nn.functional.one_hot(classes.clamp(min=0), 2) * (classes >= 0)[..., None]
        class_outputs.append((hot.float() * 20 - 10).flatten(3).permute(0, 3, 1, 2))
        box_outputs.append(boxes.permute(0, 3, 1, 2))
    for found, target in zip(model.postprocess(class_outputs, box_outputs, prepared), targets, strict=True):
        sure = found["scores"] > 0.9
        order = found["boxes"][sure][:, 0].argsort()
        torch.testing.assert_close(found["boxes"][sure][order], target["boxes"], atol=0.01, rtol=0)
        assert found["labels"][sure][order].tolist() == target["labels"].tolist()


def test_the_losses_add_up_to_effdets_total(model) -> None:
    model.train()
    prepared = model.preprocess(make_images(2), make_targets(2))
    with torch.no_grad():
        outputs = model.model(prepared.tensors)
        total, _, _ = model.loss(*outputs, *model.assign_anchors(prepared))
        losses = model.compute_loss(*outputs, prepared)
    assert set(losses) == {"classification", "box_regression"}
    torch.testing.assert_close(sum(losses.values()), total)
    assert model.loss.use_jit is False


def test_a_file_of_effdets_own_names_is_read(model, tmp_path) -> None:
    torch.save(model.model.state_dict(), tmp_path / "effdet.pth")
    built = zoo.build_model(
        "tiny_efficientdet", BuildOptions(num_classes=3, weights=str(tmp_path / "effdet.pth"), seed=4)
    )
    own = built.module.model.state_dict()
    assert all(torch.equal(value, own[key]) for key, value in model.model.state_dict().items())
    assert all(key.startswith("model.") for key in built.module.state_dict())


def test_a_full_size_network_runs_at_another_input_size() -> None:
    built = zoo.build_model("efficientdet_d0", BuildOptions(weights="none", num_classes=3, image_size=160))
    losses = built.module.train()(make_images(1), make_targets(1))
    sum(losses.values()).backward()
    assert all(torch.isfinite(loss) for loss in losses.values())
    with pytest.raises(UsageError, match="needs a multiple of 32") as caught:
        zoo.build_model("efficientdet_d0", BuildOptions(weights="none", image_size=150))
    assert caught.value.hint == "try 160"


def test_coco_weights_that_nobody_offers_are_refused_at_once() -> None:
    with pytest.raises(UsageError, match="no published COCO weights for efficientdet_d3"):
        zoo.build_model("efficientdet_d3", BuildOptions(weights="coco"))


def test_only_the_known_warning_is_silenced() -> None:
    with pytest.raises(UserWarning, match="something else"), quiet_effdet():
        warnings.warn("something else", UserWarning, stacklevel=1)
