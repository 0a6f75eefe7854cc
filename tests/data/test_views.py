from __future__ import annotations

from pathlib import Path
from typing import Any

import data_trees as trees
import numpy as np
import pytest
import torch
from PIL import Image

from detscope.config.schema import DataSettings, TrainingSettings
from detscope.data.formats.coco import mirror_points
from detscope.data.loading import (
    Augmentation,
    BatchOrder,
    View,
    build_loader,
    classify_shape,
    group_batches,
    make_float,
    make_planes,
)
from detscope.data.registry import open_dataset
from detscope.sessions.train.course import PassOrder


def always(**options: Any) -> Any:
    """An augmentation that shows every image in one way."""

    class Fixed:
        def draw_view(self, _passes: int, _index: int) -> View:
            return View(**options)

    return Fixed()


def one_image(folder: Path, size: tuple[int, int] = (96, 72), **needs: bool) -> Any:
    """A left half in red with a box, a polygon and points on it."""
    content = trees.coco_content(2)
    content["categories"] = [{"id": 1, "name": "person", "keypoints": ["nose", "left_eye", "right_eye"]}]
    width, height = size
    content["images"] = [{"id": 1, "file_name": "a.png", "width": width, "height": height}]
    content["annotations"] = [
        {
            "id": 1,
            "image_id": 1,
            "category_id": 1,
            "bbox": [0, 0, width / 2, height / 2],
            "segmentation": [[0, 0, width / 2, 0, width / 2, height / 2, 0, height / 2]],
            "keypoints": [4, 2, 2, 8, 4, 2, 0, 0, 0],
            "iscrowd": 0,
            "area": width * height / 4,
        }
    ]
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2, 0] = 255
    trees.coco_folder(folder, content)
    Image.fromarray(pixels).save(folder / "images" / "a.png")
    return open_dataset(DataSettings(name=str(folder)), **needs)


def test_a_mirrored_image_has_its_boxes_masks_and_points_mirrored(tmp_path: Path) -> None:
    dataset = one_image(tmp_path, need_masks=True, need_keypoints=True)
    plain_image, plain = dataset[0]
    dataset.augmentation = always(flip=True)
    image, target = dataset[0]
    assert torch.equal(image, plain_image.flip(-1))
    assert target["boxes"].tolist() == [[48, 0, 96, 36]]
    assert torch.equal(target["masks"], plain["masks"].flip(-1))
    # the left eye of a mirrored face is where the right one was; a point nobody marked stays 0, 0, 0
    assert target["keypoints"][0].tolist() == [[92, 2, 2], [0, 0, 0], [88, 4, 2]]
    assert plain["keypoints"][0].tolist() == [[4, 2, 2], [8, 4, 2], [0, 0, 0]]


def test_points_swap_left_and_right_by_their_names() -> None:
    assert mirror_points(["nose", "left_ear", "right_ear", "tail", "left_only"]) == (0, 2, 1, 3, 4)


def test_a_resized_image_has_boxes_areas_masks_and_points_of_its_new_size(tmp_path: Path) -> None:
    dataset = one_image(tmp_path, need_masks=True, need_keypoints=True)
    dataset.augmentation = always(short_side=144)
    image, target = dataset[0]
    assert image.shape == (3, 144, 192) and image.dtype == torch.float32
    assert image[0, 40, 60] > 0.9 and image[0, 100, 150] < 0.1
    assert target["boxes"].tolist() == [[0, 0, 96, 72]]
    assert target["area"].tolist() == [96 * 72]
    assert target["masks"].shape == (1, 144, 192)
    assert target["masks"][0].sum() == 96 * 72
    assert target["keypoints"][0, 0].tolist() == [8, 4, 2]


@pytest.mark.parametrize("size", [(40, 30), (192, 144), (95, 71)])
def test_resizing_agrees_with_pillow_within_a_level(size: tuple[int, int]) -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (72, 96, 3), dtype=np.uint8))
    ours = make_planes(np.asarray(picture), size, flip=False)
    theirs = np.asarray(picture.resize(size, Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.abs(ours.numpy().astype(int) - theirs.astype(int)).max() <= 1


def test_the_long_side_is_capped() -> None:
    assert View(short_side=800, max_size=1333).scale_size(640, 480) == (1067, 800)
    assert View(short_side=800, max_size=1333).scale_size(2000, 500) == (1333, 333)
    assert View().scale_size(33, 44) == (33, 44)


def test_a_large_jpeg_that_is_shown_small_looks_like_one_decoded_whole(tmp_path: Path) -> None:
    content = trees.coco_content(2)
    content["images"] = [{"id": 1, "file_name": "big.jpg", "width": 1600, "height": 1200}]
    trees.coco_folder(tmp_path, content)
    (tmp_path / "images" / "big.jpg").write_bytes(trees.picture(3, (1600, 1200), quality=95))
    dataset: Any = open_dataset(DataSettings(name=str(tmp_path)))
    whole = dataset[0][0]
    dataset.augmentation = always(short_side=150)
    small, target = dataset[0]
    assert small.shape == (3, 150, 200)
    expected = torch.nn.functional.interpolate(whole[None], (150, 200), mode="bilinear", antialias=True)[0]
    assert (small - expected).abs().mean() < 0.01
    assert target["boxes"][0].tolist() == pytest.approx([5 / 8, 10 / 8, 35 / 8, 40 / 8])


def test_views_depend_on_pass_and_image_alone_and_use_every_scale() -> None:
    drawn = Augmentation(seed=3, flip=True, scales=(64, 96))
    views = [drawn.draw_view(11, index) for index in range(64)]
    assert views == [drawn.draw_view(11, index) for index in range(64)]
    assert views != [drawn.draw_view(12, index) for index in range(64)]
    assert {view.short_side for view in views} == {64, 96}
    assert 16 < sum(view.flip for view in views) < 48
    assert not any(Augmentation(seed=3, scales=(64,)).draw_view(0, index).flip for index in range(20))


@pytest.fixture(scope="module")
def shapes_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images, every second one upright."""
    folder = tmp_path_factory.mktemp("shapes")
    content = trees.coco_content(12)
    for image in content["images"][::2]:
        image["width"], image["height"] = 60, 90
    content["annotations"] = []
    trees.coco_folder(folder, content, "train.json")
    for image in content["images"]:
        size = (image["width"], image["height"])
        (folder / "images" / image["file_name"]).write_bytes(trees.picture(image["id"], size))
    (folder / "val.json").write_bytes((folder / "train.json").read_bytes())
    return folder


def loaded(folder: Path, workers: int = 0, passes: int = 1, **settings: Any) -> list[Any]:
    data = DataSettings(name=str(folder), **settings)
    dataset = open_dataset(data, seed=1)
    training = TrainingSettings(batch_size=2, num_workers=workers)
    loader = build_loader(dataset, training, "cpu", seed=1, data=data).loader
    order = PassOrder(loader, 1)  # as a training does
    batches = []
    for number in range(passes):
        order.begin_pass(number)
        batches += list(loader)
    return batches


def test_workers_change_nothing_of_what_is_seen(shapes_folder: Path) -> None:
    settings: dict[str, Any] = {"flip": True, "scales": [48, 64]}
    alone, helped = loaded(shapes_folder, passes=2, **settings), loaded(shapes_folder, 2, 2, **settings)
    assert len(alone) == len(helped) == 12
    for one, other in zip(alone, helped, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))
        assert one[0][0].dtype == other[0][0].dtype == torch.float32
        assert [target["image_id"] for target in one[1]] == [target["image_id"] for target in other[1]]
    first, second = alone[:6], alone[6:]
    assert [len(batch[0]) for batch in first] == [2] * 6
    ids = [target["image_id"] for _, targets in first for target in targets]
    assert sorted(ids) == list(range(1, 13)) and ids != sorted(ids)
    assert ids != [target["image_id"] for _, targets in second for target in targets]


def test_evaluation_sees_images_as_they_are(shapes_folder: Path) -> None:
    data = DataSettings(name=str(shapes_folder), flip=True, scales=[48])
    dataset = open_dataset(data, split="val")
    assert dataset[0][0].shape == (3, 90, 60)


def test_grouping_by_aspect_puts_alike_shapes_together_and_every_image_once(shapes_folder: Path) -> None:
    batches = loaded(shapes_folder, group_by_aspect=True)
    assert all(images[0].shape == images[1].shape for images, _ in batches)
    assert sorted(target["image_id"] for _, targets in batches for target in targets) == list(range(1, 13))


def test_what_a_shape_leaves_over_is_still_used() -> None:
    shapes = [0, 1, 0, 1, 0, 2, 2]
    batches = group_batches(range(7), 2, shapes, drawn=5)
    assert sorted(index for batch in batches for index in batch) == list(range(7))
    assert [len(batch) for batch in batches] == [2, 2, 2, 1]
    assert classify_shape(90, 60) != classify_shape(60, 90) == classify_shape(61, 90)


def test_whoever_seeds_the_generator_before_a_pass_gets_the_same_order_again() -> None:
    generator = torch.Generator()
    order = BatchOrder(9, 2, generator, keys_with_pass=True)
    generator.manual_seed(5)
    first = list(order)
    list(order)
    generator.manual_seed(5)
    assert list(order) == first and len(order) == len(first) == 5


def test_bytes_become_shares_of_one_exactly() -> None:
    values = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(make_float(values), values.to(torch.float32) / 255)


def test_multi_scale_training_gives_the_network_the_drawn_sizes() -> None:
    from torchvision.models.detection.transform import GeneralizedRCNNTransform

    from detscope.sessions.train.loop import keep_drawn_sizes

    class Model:
        transform = GeneralizedRCNNTransform(800, 1333, [0.5] * 3, [0.5] * 3)

    assert keep_drawn_sizes(Model(), DataSettings()) == []
    assert "48, 64" in keep_drawn_sizes(Model(), DataSettings(scales=[64, 48]))[0]
    image = torch.rand(3, 48, 60)
    assert Model.transform.train()([image])[0].image_sizes == [(48, 60)]
    assert Model.transform.eval()([image])[0].image_sizes == [(800, 1000)]
    fixed = GeneralizedRCNNTransform(300, 300, [0.5] * 3, [0.5] * 3, fixed_size=(300, 300))
    Model.transform = fixed
    assert "only blur" in keep_drawn_sizes(Model(), DataSettings(scales=[48]))[0]
