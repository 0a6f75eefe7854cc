"""The contract between a data set and everybody else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NotRequired, Protocol, TypedDict, TypeVar

from detscope.config.schema import DataSettings

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from detscope.data.download.prepare import Collection
    from detscope.data.loading import Augmentation

Target = dict[str, Any]
Split = Literal["train", "val"]
Item = TypeVar("Item")

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how much is done and how much there is (None: not known)."""


def track_progress(
    items: Iterable[Item], total: int, what: str, progress: Progress | None, every: int = 16
) -> Iterator[Item]:
    """The items; after every few of them, and after the last, `progress` hears how many are done."""
    for done, item in enumerate(items, start=1):
        yield item
        if progress is not None and (done % every == 0 or done == total):
            progress(what, done, total)


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


class TruthContent(TypedDict):
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

    def ground_truth(self) -> TruthContent:
        """Every image and object as a COCO annotation file holds them; no image is decoded."""


@dataclass(frozen=True)
class OpenRequest:
    """Everything that whoever opens a data set may want to know."""

    settings: DataSettings
    need_masks: bool = False
    need_keypoints: bool = False
    seed: int = 0
    split: Split = "train"
    progress: Progress | None = None
    checking: bool = False  # read everything, stop at nothing; images are looked at by others

    @property
    def other_split(self) -> Split:
        """The split that is not asked for; its files tell class names too."""
        return "val" if self.split == "train" else "train"

    @property
    def skip_bad(self) -> bool:
        """Whether bad images and annotations are left out instead of stopping everything."""
        return self.checking or self.settings.on_bad_data == "skip"

    def make_augmentation(self) -> Augmentation | None:
        """What training draws anew for every image; an evaluation sees images as they are."""
        from detscope.data.loading import Augmentation

        settings = self.settings
        if self.split != "train" or not (settings.flip or settings.scales):
            return None
        return Augmentation(self.seed, settings.flip, tuple(settings.scales), settings.max_size)


@dataclass(frozen=True)
class DatasetFormat:
    """A data set, or a layout that folders have; a file of `formats/` holds one as its `PART`."""

    name: str
    description: str
    open_named: Callable[[OpenRequest], DetectionDataset] | None = None  # None: no data set has this name
    open_folder: Callable[[Path, OpenRequest, str], DetectionDataset] | None = None  # None: not a layout
    recognises: Callable[[Path], bool] | None = None  # whether a folder or a file has this layout
    order: int | None = None  # in which layouts are tried
    collections: tuple[Collection, ...] = ()  # what `detscope data prepare` can bring
    class_lists: tuple[Sequence[str], ...] = ()  # names by label, without background; several: by number
