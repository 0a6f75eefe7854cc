"""The contract between a data set and everybody else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, Protocol, TypedDict

if TYPE_CHECKING:
    import torch

Target = dict[str, Any]

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how much is done and how much there is (None: not known)."""


@dataclass(frozen=True)
class Problem:
    """One flaw found in a data set and what was done about it."""

    image: str
    annotation_id: int | None  # None: the image itself
    reason: str
    action: str  # "dropped", "clipped" or "noted"

    def __str__(self) -> str:
        where = "" if self.annotation_id is None else f", annotation {self.annotation_id}"
        return f"{self.image}{where}: {self.reason} ({self.action})"


class TruthImage(TypedDict):
    """An image of the ground truth, in its own pixels; `id` is the `image_id` of its target."""

    id: int
    file_name: str
    width: int
    height: int


class TruthObject(TypedDict):
    """An object of the ground truth; crowd and difficult ones too, though no detector trains on them."""

    id: int  # unique from 1, whatever the file says
    image_id: int
    category_id: int  # the file's own id, not the label
    bbox: list[float]  # x, y, width, height
    area: float
    iscrowd: int  # COCO: a region whose detections are ignored
    difficult: int  # VOC: neither found nor missed; 0 elsewhere
    ignore: int  # 1 for crowd and difficult ones
    segmentation: NotRequired[Any]  # polygons or {"size", "counts"}; only where masks were asked for
    keypoints: NotRequired[list[float]]
    num_keypoints: NotRequired[int]


class TruthCategory(TypedDict):
    """A class under the id that the annotation file gives it."""

    id: int
    name: str


class GroundTruth(TypedDict):
    """A whole data set in the form of a COCO annotation file."""

    images: list[TruthImage]
    annotations: list[TruthObject]
    categories: list[TruthCategory]


class DetectionDataset(Protocol):
    """A map-style data set of images with boxes.

    Items are `(image, target)`: a float32 CHW tensor in [0, 1] and a dict with `boxes` (float32
    [N, 4], xyxy, inside the image), `labels` (int64 from 1; 0 is background), `image_id` (int),
    `area`, `iscrowd`, `difficult` (int64 [N]), and where asked for `masks` (uint8 [N, H, W]) and
    `keypoints` ([N, K, 3]). Crowd and difficult objects are in `ground_truth()` and not in targets.
    Images of the split "val" come in their own size: detections need no scaling back.
    Reading marks itself with `marks.region("load")`, `("decode")` and `("transform")`.
    """

    name: str
    classes: tuple[str, ...]  # classes[0] is "background"
    category_ids: tuple[int, ...]  # the annotation file's own id of label 1, 2, ...
    problems: tuple[Problem, ...]  # what was dropped, clipped or noted (`data.on_bad_data = "skip"`)
    notes: tuple[str, ...]  # decisions a person should know of, such as a split of our own making

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Target]: ...

    def image_name(self, index: int) -> str:
        """File name of an image, for messages and reports."""

    def image_size(self, index: int) -> tuple[int, int]:
        """Width and height in pixels, as annotated and shown; no image is decoded."""

    def ground_truth(self) -> GroundTruth:
        """Every image and object as a COCO annotation file holds them; no image is decoded."""
