"""Images leave a loader worker as uint8 and arrive as float32.

A worker's tensors travel through shared memory, whose fresh pages cost more than the arithmetic:
at 640 px a float image takes four times the bytes and 3 ms more. So workers send uint8, and taking
the batch out of the queue makes float32 of it; everybody else sees float32 only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detscope.data.contract import DetectionDataset, Target
from detscope.data.loading.packing import PackedBatch
from detscope.data.loading.views import ItemKey, to_float

if TYPE_CHECKING:
    import torch


@dataclass
class Uint8Items:
    """A data set seen through `read`: its images as uint8."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: ItemKey) -> tuple[torch.Tensor, Target]:
        item: tuple[torch.Tensor, Target] = self.dataset.read(key)
        return item

    def __getattr__(self, name: str) -> Any:
        # unpickling asks before there is a data set
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)


def uint8_items(dataset: DetectionDataset) -> Any:
    """The data set with uint8 images where it can give them, else as it is."""
    return Uint8Items(dataset) if hasattr(dataset, "read") else dataset


def collate(items: list[tuple[Any, Target]]) -> Any:
    """Images of different sizes stay a list; the detectors pad them. A worker sends the batch packed."""
    from torch.utils.data import get_worker_info

    images, targets = [image for image, _ in items], [target for _, target in items]
    if get_worker_info() is not None:
        return PackedBatch(images, targets)
    return [image if image.dtype.is_floating_point else to_float(image) for image in images], targets
