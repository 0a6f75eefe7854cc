from __future__ import annotations

import sys

import pytest
import torch
from zoo_samples import make_images, make_targets

from detscope import zoo
from detscope.errors import InputError, UsageError
from detscope.extras import MissingExtraError
from detscope.zoo import BuildOptions
from detscope.zoo.families._transformers_build import TransformersFamily, free_backbone, make_network
from detscope.zoo.registry import get_family, list_families, recognise_family
from detscope.zoo.structure import count_parameters

TINY = ["tiny_detr", "tiny_rtdetr", "tiny_dfine"]
# one model of each other class of networks, as small as it can be run
OTHERS = {
    "deformable_detr_r50": 64,
    "rtdetrv2_r18": 128,
    "lwdetr_tiny": 192,
    "rfdetr_nano": 288,
    "yolos_tiny": 64,
}


def build(name: str, **options):
    torch.manual_seed(0)
    return zoo.build_model(name, BuildOptions(num_classes=3, image_size=OTHERS.get(name), **options)).module


def make_odd_batch():
    """Images of different sizes and shapes, one of them with a single object."""
    generator = torch.Generator().manual_seed(2)
    images = [torch.rand(3, 100, 140, generator=generator), torch.rand(3, 150, 110, generator=generator)]
    targets = make_targets(2)
    targets[1] = {"boxes": torch.tensor([[20.0, 30, 100, 140]]), "labels": torch.tensor([2])}
    return images, targets


@pytest.mark.parametrize("name", [*TINY, *(name for name in OTHERS if name != "rfdetr_nano")])
def test_the_losses_add_up_to_what_transformers_trains_on(name) -> None:
    module = build(name).train()
    images, targets = make_odd_batch()
    with torch.no_grad():
        torch.manual_seed(3)  # of denoising and dropout
        losses = module(images, targets)
        framed = module.preprocess(images, targets)
        mask = {} if framed.mask is None or not module.framing.sees_mask else {"pixel_mask": framed.mask}
        torch.manual_seed(3)
        own = module.network(pixel_values=framed.tensors, labels=framed.labels, **mask).loss
    torch.testing.assert_close(torch.stack(list(losses.values())).sum(), own.reshape(()))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("tiny_detr", {"loss_ce", "loss_bbox", "loss_giou", "auxiliary"}),
        ("tiny_rtdetr", {"loss_vfl", "loss_bbox", "loss_giou", "auxiliary", "encoder", "denoising"}),
        (
            "tiny_dfine",
            {"loss_vfl", "loss_bbox", "loss_giou", "auxiliary", "encoder", "denoising"},
        ),
        ("lwdetr_tiny", {"loss_ce", "loss_bbox", "loss_giou", "auxiliary", "encoder"}),
    ],
)
def test_losses_of_layers_before_the_last_are_told_by_where_they_belong(name, parts) -> None:
    assert set(build(name).train()(*make_odd_batch())) == parts


@pytest.mark.parametrize("name", TINY)
def test_a_few_steps_on_one_batch_bring_its_loss_down(name) -> None:
    module = build(name).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    sums = []
    for _ in range(15):
        total = torch.stack(list(module(*make_odd_batch()).values())).sum()
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        sums.append(total.item())
    assert all(torch.isfinite(torch.tensor(sums)))
    assert sum(sums[-3:]) / 3 < 0.9 * sums[0]


@pytest.mark.parametrize("name", TINY)
def test_a_batch_without_any_object_trains(name) -> None:
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)}
    losses = build(name).train()(make_images(2), [nothing, nothing])
    total = torch.stack(list(losses.values())).sum()
    total.backward()
    assert torch.isfinite(total)


@pytest.mark.parametrize("name", [*TINY, "yolos_tiny", "lwdetr_tiny"])
def test_perfect_outputs_give_back_the_targets_in_the_pixels_of_each_image(name) -> None:
    module = build(name)
    images, targets = make_odd_batch()
    framed = module.preprocess(images, targets)
    outputs = module.network.config.num_labels + module.framing.has_no_object
    logits, boxes = torch.full((2, 5, outputs), -20.0), torch.full((2, 5, 4), 0.5)
    if module.framing.has_no_object:
        logits[..., -1] = 0.0
    for index, label in enumerate(framed.labels):
        count = len(label["boxes"])
        boxes[index, :count] = label["boxes"]
        logits[index, range(count), label["class_labels"]] = 20.0 - torch.arange(float(count))
    for found, target in zip(module.postprocess(logits, boxes, framed), targets, strict=True):
        count = len(target["boxes"])
        torch.testing.assert_close(found["boxes"][:count], target["boxes"], atol=0.01, rtol=0)
        assert found["labels"][:count].tolist() == target["labels"].tolist()
        assert (found["scores"][:count] > 0.9).all() and (found["scores"][count:] < 0.1).all()


@pytest.mark.parametrize("name", ["tiny_detr", "tiny_rtdetr"])
def test_padding_is_masked_and_a_square_has_none(name) -> None:
    images, _ = make_odd_batch()
    framed = build(name).preprocess(images)
    if name == "tiny_rtdetr":
        assert framed.tensors.shape == (2, 3, 128, 128) and framed.mask is None
        return
    assert framed.image_sizes == [(114, 160), (160, 117)] and framed.tensors.shape == (2, 3, 160, 160)
    assert framed.mask is not None
    assert [int(mask.sum()) for mask in framed.mask] == [114 * 160, 160 * 117]
    assert framed.tensors[0, :, 114:].abs().sum() == 0 and framed.tensors[1, :, :, 117:].abs().sum() == 0


@pytest.mark.parametrize("name", [*TINY, *OTHERS])
def test_padded_images_of_any_size_have_detections_inside_of_them(name) -> None:
    module = build(name).eval()
    images, _ = make_odd_batch()
    with torch.no_grad():
        for found, image in zip(module(images), images, strict=True):
            edges = torch.tensor([image.shape[-1], image.shape[-2]] * 2)
            assert len(found["boxes"]) == len(found["scores"]) == len(found["labels"]) > 0
            assert (found["boxes"] >= 0).all() and (found["boxes"] <= edges + 0.01).all()
            assert set(found["labels"].tolist()) <= {1, 2}
            assert (found["scores"].diff() <= 0).all(), "best first"


@pytest.mark.parametrize("name", ["detr_r50", "rtdetr_r18", "rtdetr_r50", "dfine_n", "dfine_s", *OTHERS])
def test_cards_count_what_is_built(name) -> None:
    card = zoo.get_card(name)
    family = get_family(card.family)
    variant = family.variants[name]
    with torch.device("meta"):
        network = make_network(variant, family.count_classes(card))
        free_backbone(network)
    assert count_parameters(network) == card.parameters
    assert card.input_size.split("-")[0] == str(variant.framing.size)


def test_every_card_has_a_variant_and_says_where_weights_come_from() -> None:
    families = [family for family in list_families() if isinstance(family, TransformersFamily)]
    assert [family.name for family in families] == [
        "detr",
        "deformable_detr",
        "rt_detr",
        "d_fine",
        "lw_detr",
        "yolos",
    ]
    for family in families:
        assert set(family.variants) == {card.name for card in family.list_cards()}
        assert all("hub" in card.note for card in family.cards)


@pytest.mark.parametrize("name", [*TINY, "lwdetr_tiny"])
def test_a_built_detector_is_recognised_as_of_its_family(name) -> None:
    assert recognise_family(build(name)).name == zoo.get_card(name).family


def test_a_file_of_transformers_fills_the_network_and_keeps_its_norms_frozen(tmp_path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(9)
        network = make_network(get_family("rt_detr").variants["tiny_rtdetr"], 3)
    path = tmp_path / "model.pt"
    torch.save(network.state_dict(), path)
    built = zoo.build_model("tiny_rtdetr", BuildOptions(num_classes=3, weights=str(path)))
    assert built.weights.kind == "file"
    own = built.module.network.state_dict()
    assert all(torch.equal(own[key], value) for key, value in network.state_dict().items())
    norms = {type(one).__name__ for one in built.module.network.model.backbone.modules()}
    assert "RTDetrFrozenBatchNorm2d" in norms and "BatchNorm2d" not in norms
    fewer = zoo.build_model("tiny_rtdetr", BuildOptions(num_classes=2, weights=str(path)))
    assert fewer.weights.replaced
    with pytest.raises(InputError, match="do not fit tiny_dfine"):
        zoo.build_model("tiny_dfine", BuildOptions(num_classes=3, weights=str(path)))


def test_a_checkpoint_of_ours_is_read_with_norms_that_train(tmp_path) -> None:
    module = build("tiny_rtdetr")
    path = tmp_path / "checkpoint.pt"
    torch.save(module.state_dict(), path)
    again = zoo.build_model("tiny_rtdetr", BuildOptions(num_classes=3, weights=str(path), seed=5)).module
    for before, after in zip(module.parameters(), again.parameters(), strict=True):
        assert torch.equal(before, after) and before.requires_grad == after.requires_grad


def test_what_cannot_be_had_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match="nothing is fetched"):
        zoo.build_model("rtdetr_r18", BuildOptions(weights="coco"))
    with pytest.raises(UsageError, match="works from 256 pixels on"):
        zoo.build_model("dfine_n", BuildOptions(image_size=128))
    with pytest.raises(UsageError, match="needs a multiple of 32"):
        zoo.build_model("tiny_rtdetr", BuildOptions(image_size=100))
    with pytest.raises(UsageError, match="does not know trainable_layers"):
        zoo.build_model("tiny_detr", BuildOptions(trainable_layers=1))


def test_without_transformers_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError) as raised:
        zoo.build_model("tiny_rtdetr")
    assert "detscope[families]" in raised.value.hint


def test_training_without_targets_is_refused() -> None:
    with pytest.raises(ValueError, match="targets should not be none"):
        build("tiny_detr").train()(make_images(1))
