"""Labels and their names: counts, known ids, and what effdet and torchvision themselves say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from detscope.data.registry import class_names


def test_coco_by_id_has_80_names_under_91_ids() -> None:
    names = class_names("coco", 91)
    assert len(names) == 91
    used = [name for name in names[1:] if name != "N/A"]
    assert len(used) == len(set(used)) == 80
    known = {0: "background", 1: "person", 11: "fire hydrant", 12: "N/A", 13: "stop sign", 18: "dog"}
    known |= {27: "backpack", 44: "bottle", 62: "chair", 67: "dining table", 70: "toilet", 90: "toothbrush"}
    assert {label: names[label] for label in known} == known


def test_the_names_of_coco_are_those_that_torchvision_gives_its_weights() -> None:
    from torchvision.models.detection import FasterRCNN_ResNet50_FPN_Weights

    theirs = FasterRCNN_ResNet50_FPN_Weights.COCO_V1.meta["categories"]
    assert list(class_names("coco", 91))[1:] == theirs[1:]


def test_effdets_labels_are_coco_ids_with_or_without_the_background_counted(tmp_path: Path) -> None:
    from detscope.zoo.families.efficientdet import find_config, quiet_effdet

    with quiet_effdet():
        from effdet.data.parsers.parser_coco import CocoParser
        from effdet.data.parsers.parser_config import CocoParserCfg
    annotation = {"id": 1, "image_id": 1, "category_id": 90, "bbox": [1, 1, 9, 9], "area": 81, "iscrowd": 0}
    categories = [{"id": 18, "name": "dog"}, {"id": 90, "name": "toothbrush"}]
    image = {"id": 1, "file_name": "1.jpg", "width": 64, "height": 64}
    content = {"images": [image], "annotations": [annotation], "categories": categories}
    (tmp_path / "a.json").write_text(json.dumps(content))
    # effdet keeps the gaps: it has 90 outputs, and trains with the ids as labels
    label = CocoParser(CocoParserCfg(ann_filename=str(tmp_path / "a.json"))).get_ann_info(0)["cls"][0]
    assert find_config("tf_efficientdet_d0").num_classes == label == 90
    assert class_names("coco", 90) == class_names("coco", 91)
    assert class_names("tf_efficientdet_d0_coco.pth", 90)[label] == "toothbrush"


def test_eighty_contiguous_classes_are_numbered_without_gaps() -> None:
    names = class_names("coco", 81)
    assert len(names) == len(set(names)) == 81
    assert (names[1], names[17], names[80]) == ("person", "dog", "toothbrush")
    assert class_names("coco", 80) == names
    assert class_names("coco", 2) == ("background", "person")


@pytest.mark.parametrize(
    ("name", "count", "known"),
    [
        ("voc", 20, {1: "aeroplane", 12: "dog", 15: "person", 20: "tvmonitor"}),
        ("pets", 37, {1: "Abyssinian", 6: "Bengal", 33: "Siamese", 37: "Yorkshire Terrier"}),
        ("oxford-iiit-pet", 37, {2: "American Bulldog"}),
        ("synthetic", 5, {1: "circle", 5: "cross"}),
    ],
)
def test_other_sets_have_their_own_names(name: str, count: int, known: dict[int, str]) -> None:
    names = class_names(name, count + 1)
    assert len(names) == len(set(names)) == count + 1
    assert names[0] == "background"
    assert {label: names[label] for label in known} == known


def test_pets_as_one_class() -> None:
    assert class_names("pets", 2) == ("background", "pet")


@pytest.mark.parametrize("name", ["", "random", "auto", "runs/coco/mine.pth", "coco"])
def test_without_knowledge_classes_have_numbers(name: str) -> None:
    names = class_names(name, 9)
    assert len(names) == 9
    assert names[7] == "class 7"


def test_names_of_weight_files_and_versions_are_understood() -> None:
    coco = class_names("coco", 91)
    for name in ("COCO_V1", "fasterrcnn_resnet50_fpn_coco-258fb6c6.pth", "FasterRCNN_Weights.COCO_V1"):
        assert class_names(name, 91) == coco
    assert class_names("pascal_voc2012.pth", 21) == class_names("VOC", 21)


def test_names_need_no_torch() -> None:
    code = "import sys; from detscope.data.registry import class_names; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
