"""The contract between a data set and everybody else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

Target = dict[str, Any]


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
