"""Images, boxes and pixels of a batch, in the forms that people's loaders and trainers give them."""

from __future__ import annotations

from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from detscope.analyze.summary import summarize
from detscope.record.content import BatchContent, add_contents, describe_batch
from detscope.record.recorder import Recorder

HIGH, WIDE = 8, 6
STACKED = torch.zeros(2, 3, HIGH, WIDE)
LISTED = [torch.zeros(3, HIGH, WIDE)] * 2
TWO, ONE = torch.tensor([[0.0, 0, 4, 4], [1, 1, 3, 3]]), torch.tensor([[2.0, 2, 5, 5]])
PADDED = torch.tensor([[[0.0, 0, 4, 4], [1, 1, 3, 3]], [[2.0, 2, 5, 5], [-1, -1, -1, -1]]])
TARGETS = [{"boxes": TWO, "image_id": 7}, {"boxes": ONE, "image_id": torch.tensor([8])}]
HF_LABELS = [{"class_labels": torch.zeros(len(boxes)), "boxes": boxes} for boxes in (TWO, ONE)]
COCO = [[{"bbox": [0, 0, 1, 1]}, {"bbox": [0, 0, 1, 1]}], [{"bbox": [0, 0, 1, 1]}]]
ROWS = torch.zeros(3, 6)  # image, class, box


class NestedTensor:
    def __init__(self, tensors: torch.Tensor, mask: torch.Tensor | None) -> None:
        self.tensors, self.mask = tensors, mask


class Instances:
    """Holds fields by name, and is as long as there are boxes."""

    def __init__(self, boxes: torch.Tensor) -> None:
        self._fields = {"gt_boxes": boxes}

    def __len__(self) -> int:
        return len(self._fields["gt_boxes"])


class DataSample:
    def __init__(self, boxes: torch.Tensor) -> None:
        self._gt_instances = Instances(boxes)

    @property
    def gt_instances(self) -> Instances:
        return self._gt_instances


@dataclass
class LightningBatch:
    images: torch.Tensor
    targets: list[dict[str, Any]]


@dataclass
class OddBatch:
    first: torch.Tensor
    second: list[dict[str, Any]]


Pair = namedtuple("Pair", ["x", "y"])

FORMS = {
    "list of images, list of dicts": (LISTED, TARGETS),
    "tuples of both": (tuple(LISTED), tuple(TARGETS)),
    "stacked images, list of dicts": (STACKED, TARGETS),
    "COCO's lists of annotations": (LISTED, COCO),
    "an image without annotations": (LISTED * 1, [COCO[0] + COCO[1], []]),
    "dict of lists": (LISTED, {"bbox": [TWO, ONE], "cls": []}),
    "dict of a padded tensor": (LISTED, {"bbox": PADDED}),
    "padded tensor": (STACKED, PADDED),
    "padded tensor with classes": (STACKED, torch.cat([PADDED, PADDED[:, :, :1]], dim=2)),
    "images, boxes, classes": (STACKED, PADDED, torch.zeros(2, 2)),
    "images, rows, paths, shapes": (STACKED, ROWS, ["a", "b"], [None, None]),
    "transformers": {"pixel_values": STACKED, "labels": HF_LABELS},
    "transformers with a mask": {
        "pixel_values": STACKED,
        "pixel_mask": torch.ones(2, HIGH, WIDE, dtype=torch.long),
        "labels": HF_LABELS,
    },
    "BatchFeature": UserDict(pixel_values=STACKED, labels=[UserDict(one) for one in HF_LABELS]),
    "ultralytics": {
        "img": STACKED,
        "bboxes": torch.zeros(3, 4),
        "batch_idx": torch.tensor([0.0, 0, 1]),
        "im_file": ["a", "b"],
    },
    "images and targets by name": {"images": LISTED, "targets": TARGETS},
    "image and annotations by name": {
        "image": STACKED,
        "annotations": [{"annotations": one} for one in COCO],
    },
    "names nobody knows": {"left": STACKED, "right": TARGETS},
    "detectron2": [{"image": LISTED[0], "instances": Instances(boxes)} for boxes in (TWO, ONE)],
    "samples as dicts": [{"image": LISTED[0], "boxes": boxes} for boxes in (TWO, ONE)],
    "samples as tuples": list(zip(LISTED, TARGETS, strict=True)),
    "mmdet": {"inputs": LISTED, "data_samples": [DataSample(TWO), DataSample(ONE)]},
    "NestedTensor": (NestedTensor(STACKED, torch.zeros(2, HIGH, WIDE, dtype=torch.bool)), TARGETS),
    "NestedTensor without a mask": (NestedTensor(STACKED, None), tuple(TARGETS)),
    "data class": LightningBatch(STACKED, TARGETS),
    "data class with names nobody knows": OddBatch(STACKED, TARGETS),
    "named tuple": Pair(STACKED, TARGETS),
    "channels last": (torch.zeros(2, HIGH, WIDE, 3), TARGETS),
    "numpy": ([np.zeros((HIGH, WIDE, 3))] * 2, [{"boxes": one.numpy()} for one in (TWO, ONE)]),
    "boxes as lists": (LISTED, [{"boxes": TWO.tolist()}, {"boxes": ONE.tolist()}]),
    "arguments by position and name": (STACKED, {"labels": HF_LABELS}),
    "a tuple around a tuple": ((LISTED, TARGETS), 0, 0),
}


@pytest.mark.parametrize("form", FORMS)
def test_images_boxes_and_pixels_are_counted_of(form: str) -> None:
    found = describe_batch(FORMS[form])
    assert (found.images, found.boxes, found.pixels) == (2, 3, 2 * HIGH * WIDE)


def test_padding_is_no_pixels_where_the_host_knows_it() -> None:
    padding = torch.ones(2, HIGH, WIDE, dtype=torch.bool)
    padding[0, :4, :3] = padding[1, :8, :2] = False
    assert describe_batch((NestedTensor(STACKED, padding), TARGETS)).pixels == 4 * 3 + 8 * 2
    masked = {"pixel_values": STACKED, "pixel_mask": (~padding).long(), "labels": HF_LABELS}
    assert describe_batch(masked).pixels == 4 * 3 + 8 * 2
    assert describe_batch(masked).padded_pixels == 2 * HIGH * WIDE
    elsewhere = {**masked, "pixel_mask": padding.to("meta")}
    assert describe_batch(elsewhere).pixels == 2 * HIGH * WIDE
    assert describe_batch(elsewhere).padded_pixels is None


def test_the_share_of_padding_and_the_one_size_of_the_input_are_figures_of_a_run(tmp_path) -> None:
    mask = torch.zeros(2, HIGH, WIDE, dtype=torch.long)
    mask[0, :4, :3] = mask[1, :8, :2] = 1
    batch = {"pixel_values": STACKED, "pixel_mask": mask, "labels": HF_LABELS}
    model = torch.nn.Conv2d(3, 1, 1)
    with Recorder(model, out=tmp_path, warmup_steps=0, telemetry_hz=0) as recorder:
        for images in recorder.steps([batch] * 4):
            model(images["pixel_values"]).sum().backward()
    found = summarize(recorder.run).content
    assert found.padding_share == pytest.approx(1 - (4 * 3 + 8 * 2) / (2 * HIGH * WIDE))
    assert found.input_sizes == 1


def test_nothing_on_a_device_is_read() -> None:
    """The meta device has shapes and no values: reading one raises."""
    images, boxes = STACKED.to("meta"), [{"boxes": TWO.to("meta"), "image_id": ONE[:1, :1].to("meta")}] * 2
    assert describe_batch((images, boxes)) == BatchContent(2, 4, 2 * HIGH * WIDE)
    assert describe_batch((images, PADDED.to("meta"))) == BatchContent(2, None, 2 * HIGH * WIDE)


def test_images_are_named_by_their_targets() -> None:
    assert describe_batch((LISTED, TARGETS)).image_ids == "7 8"
    assert describe_batch({"pixel_values": STACKED, "labels": TARGETS}).image_ids == "7 8"


class Hostile:
    @property
    def shape(self) -> Any:
        raise RuntimeError("do not look at me")


@pytest.mark.parametrize(
    "batch", [None, 3, "words", [], {}, (torch.zeros(2, 8), torch.zeros(2, 6)), {"a": "b"}, Hostile(), [[[]]]]
)
def test_what_does_not_look_like_a_batch_of_a_detector_is_not_known(batch: Any) -> None:
    assert describe_batch(batch) == BatchContent()


def test_a_batch_that_answers_whatever_it_is_asked_is_asked_nothing() -> None:
    class Lazy:
        def __init__(self) -> None:
            self.images, self.asked = STACKED, []

        def __getattr__(self, name: str) -> Any:
            self.asked.append(name)
            raise AttributeError(name)

    batch = Lazy()
    assert describe_batch(batch).images == 2
    assert batch.asked == []


def test_images_without_boxes_are_images() -> None:
    assert describe_batch(STACKED) == BatchContent(2, None, 2 * HIGH * WIDE)
    assert describe_batch((STACKED, torch.zeros(2))).boxes is None
    assert describe_batch((LISTED, [{"boxes": TWO[:0]}] * 2)).boxes == 0


def test_the_batches_of_a_step_are_added_and_one_that_is_not_known_makes_the_sum_unknown() -> None:
    one, other = describe_batch((LISTED, TARGETS)), describe_batch(STACKED)
    assert add_contents([one, one]) == BatchContent(4, 6, 4 * HIGH * WIDE, "7 8 7 8")
    assert add_contents([one, other]) == BatchContent(4, None, 4 * HIGH * WIDE, "7 8")
    assert add_contents([]) == BatchContent()
