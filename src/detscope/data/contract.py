"""The contract between a data set and everybody else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

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


class DetectionDataset(Protocol):
    """A map-style data set of images with boxes.

    Items are `(image, target)`: a float32 CHW tensor in [0, 1] and a dict with `boxes` (float32
    [N, 4], xyxy, inside the image), `labels` (int64 from 1; 0 is background), `image_id` (int),
    `area`, `iscrowd`, and where asked for `masks` (uint8 [N, H, W]) and `keypoints` ([N, K, 3]).
    Reading marks itself with `marks.region("load")`, `("decode")` and `("transform")`.
    """

    name: str
    classes: tuple[str, ...]  # classes[0] is "background"

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Target]: ...

    def image_name(self, index: int) -> str:
        """File name of an image, for messages and reports."""
