"""Real photographs through the full-size R-CNNs: what they find is drawn, with names and masks."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from detscope.data.registry import class_names
from detscope.report.drawing import Picture, draw, save_pictures

PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg")
MODELS = ("fasterrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn")


def photograph(name: str) -> Path:
    """A picture that scikit-image brings along; the package itself need not be imported for it."""
    package = find_spec("skimage")
    if package is None or package.origin is None:
        pytest.skip("scikit-image, which brings photographs, is not installed")
    return Path(package.origin).parent / "data" / name


def detector(name: str, image_size: int | None) -> Any:
    from detscope.zoo.contract import BuildOptions
    from detscope.zoo.registry import build_model

    return build_model(name, BuildOptions(weights="none", image_size=image_size)).module.eval()


def found_in(model: Any, path: Path) -> Picture:
    import torch

    from detscope.data.images import open_image

    pixels = open_image(path)
    image = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255
    with torch.inference_mode():
        (found,) = model([image])
    names = class_names("coco", 91)
    masks = (found["masks"][:, 0] > 0.5).numpy() if "masks" in found else None
    labels = [names[label] for label in found["labels"]]
    return Picture(path.name, pixels, found["boxes"].numpy(), labels, found["scores"].numpy(), masks)


@pytest.mark.parametrize("name", MODELS)
def test_a_photograph_goes_through_a_full_r_cnn_and_is_drawn(name: str, tmp_path: Path) -> None:
    # 256 instead of 800 pixels, which take some ten times as long
    picture = found_in(detector(name, image_size=256), photograph("chelsea.png"))
    height, width = picture.pixels.shape[:2]
    assert (height, width) == (300, 451)
    assert len(picture.labels) > 10
    assert (picture.masks is not None) == name.startswith("mask")
    slack = 1e-3  # of scaling boxes back from the network's size
    assert (picture.boxes >= -slack).all()
    assert (picture.boxes <= np.array([width, height, width, height]) + slack).all()
    assert (draw(picture) != picture.pixels).any()
    (path,) = save_pictures(tmp_path, [picture])
    with Image.open(path) as image:
        assert np.asarray(image).shape == (300, 451, 3)
