"""How training shows an image: mirrored or not, at one of several sizes.

What is drawn depends on the pass and the image alone, never on which worker loads it: trainings with
more or fewer workers see the same, and so does one that is resumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

ItemKey = int | tuple[int, int]
"""The number of an image, or (number drawn for the pass, number of the image) where views change by pass."""


@dataclass(frozen=True)
class View:
    """One way to show an image."""

    flip: bool = False
    short_side: int | None = None  # None: own size
    max_size: int = 1333

    def scale_size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height that an image is shown in."""
        if self.short_side is None:
            return width, height
        scale = min(self.short_side / min(width, height), self.max_size / max(width, height))
        return max(1, round(width * scale)), max(1, round(height * scale))


AS_IT_IS = View()


@dataclass(frozen=True)
class Augmentation:
    """What is drawn anew for every image and pass."""

    seed: int
    flip: bool = False
    scales: tuple[int, ...] = ()
    max_size: int = 1333

    def draw_view(self, passes: int, index: int) -> View:
        """The view of an image in the pass for which that number was drawn."""
        random = np.random.default_rng([self.seed, passes, index])
        flip = bool(random.random() < 0.5) and self.flip
        return View(flip, int(random.choice(self.scales)) if self.scales else None, self.max_size)


def make_planes(pixels: npt.NDArray[np.uint8], size: tuple[int, int], flip: bool) -> torch.Tensor:
    """uint8 [H, W, 3] to a uint8 tensor [3, height, width]; smoothed when made smaller."""
    import torch

    planes = torch.from_numpy(pixels.copy()).permute(2, 0, 1)  # Pillow's own are read-only
    width, height = size
    if planes.shape[1:] != (height, width):
        # torch's resize of uint8 takes half the time of Pillow's, and differs by one level at most
        planes = torch.nn.functional.interpolate(
            planes[None], (height, width), mode="bilinear", antialias=True
        )[0]
    return planes.flip(-1) if flip else planes.contiguous()


def make_float(pixels: torch.Tensor) -> torch.Tensor:
    """uint8 to float32 in [0, 1]; by numpy, which stays in its thread while the workers use the cores."""
    import torch

    shares = np.divide(pixels.numpy(), np.float32(255), dtype=np.float32, order="C")
    return torch.from_numpy(shares)
