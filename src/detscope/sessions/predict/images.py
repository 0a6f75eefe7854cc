"""A run's network fed with random images of the size that the run's images had."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import polars as pl

from detscope.runs.reader import Run
from detscope.zoo.networks.network import Batch, Network

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FedNetwork(Network):
    """A detector whose images are as wide and high as said, and not square."""

    width: int = 0
    height: int = 0

    def random_batch(self, batch_size: int, *, seed: int = 0, device: str = "cpu") -> Batch:
        """Square images and their boxes, cut to shape."""
        batch = super().random_batch(batch_size, seed=seed, device=device)
        images = [image[:, : self.height, : self.width].clone() for image in batch.inputs]
        return Batch(images, [self._cut(target) for target in batch.targets])

    def _cut(self, target: dict[str, Any]) -> dict[str, Any]:
        across, down = self.width / self.image_size, self.height / self.image_size
        found = dict(target)
        found["boxes"] = _scaled(target["boxes"], (across, down, across, down))
        if "masks" in target:
            found["masks"] = target["masks"][:, : self.height, : self.width].clone()
        if "keypoints" in target:
            found["keypoints"] = _scaled(target["keypoints"], (across, down, 1.0))
        return found


def _scaled(values: Tensor, factors: tuple[float, ...]) -> Tensor:
    return values * values.new_tensor(factors)


def fed(network: Network, size: tuple[int, int]) -> FedNetwork:
    """The same network, fed with images of (width, height)."""
    same = {field.name: getattr(network, field.name) for field in fields(network)}
    return FedNetwork(**(same | {"image_size": max(size)}), width=size[0], height=size[1])


def size_of_images(run: Run) -> tuple[int, int] | None:
    """Width and height of the run's images where all were alike; None where that is not known."""
    images = run.table("images").select("width", "height").drop_nulls().unique()
    if images.height == 1:
        width, height = images.row(0)
        return int(width), int(height)
    data = (run.info.get("settings") or {}).get("data") or {}
    width, height = data.get("image_width"), data.get("image_height")
    pixels = run.table("content").filter(pl.col("images") > 0).select(pl.col("pixels") / pl.col("images"))
    whole = set(pixels.to_series().drop_nulls().to_list())
    if data.get("scales") or not isinstance(width, int) or not isinstance(height, int):
        return None
    return (width, height) if whole == {float(width * height)} else None
