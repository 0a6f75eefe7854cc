from __future__ import annotations

import subprocess
import sys

import pytest

from detscope import parts, zoo
from detscope.errors import UsageError
from detscope.parts import add_part
from detscope.zoo import BuildOptions, Family, ModelCard
from detscope.zoo.family import UNKNOWN
from detscope.zoo.registry import list_families, recognise_family


def test_listing_models_does_not_import_torch() -> None:
    code = (
        "import sys; from detscope import zoo; assert len(zoo.list_cards()) > 40;"
        "zoo.get_card('faster-rcnn'); zoo.check_trainable(zoo.get_card('tiny_ssd'), 1);"
        "sys.exit('torch' in sys.modules or 'torchvision' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_family_has_a_tiny_variant_but_three_of_the_detrs() -> None:
    families = {card.family for card in zoo.list_cards()}
    tiny = {card.family for card in zoo.list_cards("tiny_*")}
    assert families - tiny == {"deformable_detr", "lw_detr", "yolos"}
    assert len(tiny) == 11


def test_all_twelve_torchvision_detectors_are_listed() -> None:
    from torchvision.models import detection, list_models

    listed = {card.name for card in zoo.list_cards() if card.source == "torchvision"}
    assert listed == set(list_models(module=detection))


def test_all_efficientdet_sizes_of_effdet_are_listed() -> None:
    from detscope.zoo.families.efficientdet import quiet_effdet

    with quiet_effdet():
        from effdet.config.model_config import efficientdet_model_param_dict as offered
    wanted = {name for name in offered if "efficientdet_d" in name or "efficientdet_lite" in name}
    assert {card.name for card in zoo.list_cards() if card.source == "effdet"} == wanted


def test_a_glob_selects_by_name_or_family() -> None:
    assert [card.name for card in zoo.list_cards("ssd*_vgg16")] == ["ssd300_vgg16"]
    assert {card.family for card in zoo.list_cards("maskrcnn")} == {"maskrcnn"}
    assert zoo.list_cards("no-such-*") == []


def test_short_names_mean_the_resnet50_fpn_models() -> None:
    assert zoo.get_card("faster-rcnn").name == "fasterrcnn_resnet50_fpn"
    assert zoo.get_card("mask-rcnn").name == "maskrcnn_resnet50_fpn"


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="no model named 'tiny_fasterrcn'") as caught:
        zoo.get_card("tiny_fasterrcn")
    assert "did you mean tiny_fasterrcnn" in caught.value.hint
    assert caught.value.exit_code == 2


def test_ssdlite_at_batch_1_is_refused_before_anything_is_built() -> None:
    for name in ("ssdlite320_mobilenet_v3_large", "tiny_ssdlite"):
        with pytest.raises(UsageError, match="batch size 1") as caught:
            zoo.check_trainable(zoo.get_card(name), 1)
        assert "at least 2" in caught.value.hint
        zoo.check_trainable(zoo.get_card(name), 2)


def test_a_small_input_that_leaves_one_pixel_is_refused_at_batch_1() -> None:
    card = zoo.get_card("efficientdet_d0")
    zoo.check_trainable(card, 1)
    zoo.check_trainable(card, 2, image_size=128)
    with pytest.raises(UsageError):
        zoo.check_trainable(card, 1, image_size=128)


def test_registering_a_family_twice_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        add_part("families", Family(name="ssd"))


def test_a_card_of_another_family_is_a_mistake() -> None:
    card = ModelCard("tiny_ssd", "ssd", "tiny", None, "128", "none")
    with pytest.raises(ValueError, match="its family is 'other'"):
        Family(name="other", tiny=card)


def test_a_model_of_another_package_never_takes_the_place_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_added", {})
    card = ModelCard("tiny_ssd", "other", "other", None, "128", "none")
    add_part("families", Family(name="other", cards=(card,)))
    assert card in zoo.list_cards()
    assert zoo.get_card("tiny_ssd").family == "ssd"


WITH_TINY = [family for family in list_families() if family.tiny is not None]


@pytest.mark.parametrize("family", WITH_TINY, ids=lambda family: family.name)
def test_every_family_recognises_its_own_and_no_other(tiny, family: Family) -> None:
    module = tiny(family.tiny.name.removeprefix("tiny_")).module
    assert recognise_family(module) is family
    own = type("Own", (type(module),), {})  # a class of a user's, derived from it
    module.__class__, before = own, type(module)
    try:
        assert recognise_family(module) is family
    finally:
        module.__class__ = before
    inside = getattr(module, "network", module)
    assert recognise_family(inside.backbone if hasattr(inside, "backbone") else inside.model) is UNKNOWN


def test_one_class_alone_is_refused() -> None:
    with pytest.raises(UsageError, match="num_classes = 1"):
        zoo.build_model("tiny_ssd", BuildOptions(num_classes=1))
