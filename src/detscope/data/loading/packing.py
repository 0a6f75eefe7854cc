"""A batch leaves its loader worker in one piece: all of its tensors in one file of shared memory, or two.

Sent one by one, each tensor is a file of its own, whose descriptor the loop has to fetch from the worker:
0.3 ms and more apiece, and a batch of eight images with masks has 56 of them.

Images travel as uint8 and arrive as float32: fresh pages of shared memory cost more than the arithmetic,
at 640 px a float image takes four times the bytes and 3 ms more. Everybody else sees float32 only.

What stays in shared memory keeps the whole file. So uint8 images, which are read once, and small tensors,
which are copied out, leave nothing behind; large ones (masks, float images), whose copies would cost as much
as packing saves, stay where they are: in a file of their own if there are uint8 images too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from detscope.data.contract import DetectionDataset, Target
from detscope.data.loading.views import ItemKey, make_float

if TYPE_CHECKING:
    import torch

Batch = tuple[list[Any], list[Target]]

_ALIGNED_BYTES = 64  # as torch's own allocator does
_COPIED_BYTES = 2**17  # up to this size; so who keeps the labels of many batches does not keep the batches


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


def prefer_uint8(dataset: DetectionDataset) -> Any:
    """The data set with uint8 images where it can give them, else as it is."""
    return Uint8Items(dataset) if hasattr(dataset, "read") else dataset


def collate_batch(items: list[tuple[Any, Target]]) -> Any:
    """Images of different sizes stay a list; the detectors pad them. A worker sends the batch packed."""
    from torch.utils.data import get_worker_info

    images, targets = [image for image, _ in items], [target for _, target in items]
    if get_worker_info() is not None:
        return PackedBatch(images, targets)
    return [image if image.dtype.is_floating_point else make_float(image) for image in images], targets


class PackedTensor(NamedTuple):
    """Where a tensor lies, among the images or in the rest, and how it is to arrive."""

    offset: int
    bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_image: bool  # a uint8 image, which arrives as float32

    @property
    def stays_shared(self) -> bool:
        """Whether it stays in the shared memory."""
        return not self.is_image and self.bytes > _COPIED_BYTES

    def view_in(self, parts: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The tensor that lies there; no copy."""
        import torch

        part, empty = parts[0 if self.is_image else 1], torch.empty(0, dtype=self.dtype)
        start = (part.storage_offset() + self.offset) // self.dtype.itemsize
        return empty.set_(part.untyped_storage(), start, self.shape, self.strides)


class PackedBatch:
    """What a worker sends; unpickles as `(images, targets)`."""

    def __init__(self, images: Sequence[torch.Tensor], targets: Sequence[Target]) -> None:
        plan = _PackingPlan()
        self._images = [plan.add_image(image) for image in images]
        self._targets = [_replace_leaves(target, plan.add_value) for target in targets]
        self._image_bytes = plan.image_bytes
        self.tensors = plan.fill_files()  # what is sent: one file of shared memory, or two

    def __reduce__(self) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
        return unpack_batch, (self.tensors, self._image_bytes, self._images, self._targets)


def unpack_batch(files: list[torch.Tensor], image_bytes: int, images: list[Any], targets: list[Any]) -> Batch:
    """The batch as the loop gets it; runs while the loader takes it out of the queue."""
    parts = _find_parts(files, image_bytes)
    arrived: dict[int, torch.Tensor] = {}

    def restore_tensor(value: Any) -> Any:
        if not isinstance(value, PackedTensor):
            return value
        if id(value) not in arrived:
            tensor = value.view_in(parts)
            arrived[id(value)] = (
                make_float(tensor) if value.is_image else tensor if value.stays_shared else tensor.clone()
            )
        return arrived[id(value)]

    return _replace_leaves(images, restore_tensor), _replace_leaves(targets, restore_tensor)


def count_packed_bytes(image: torch.Tensor, target: Target) -> int:
    """Shared memory that an item takes on its way."""
    plan = _PackingPlan()
    plan.add_image(image)
    _replace_leaves(target, plan.add_value)
    return plan.image_bytes + plan.rest_bytes + plan.apart_bytes


def _replace_leaves(value: Any, replace: Callable[[Any], Any]) -> Any:
    """The same dicts, lists and tuples with something else in them."""
    if type(value) is dict:
        return {key: _replace_leaves(item, replace) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replace_leaves(item, replace) for item in value)
    return replace(value)


def _find_parts(files: list[torch.Tensor], image_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where images lie and where the rest does."""
    return files[0], files[1] if len(files) > 1 else files[0][image_bytes:]


class _PackingPlan:
    """Gives every tensor its place; one that is found twice has one place."""

    def __init__(self) -> None:
        self.image_bytes = self.rest_bytes = 0
        self.apart_bytes = 0  # of tensors that go on their own
        self._packed: dict[int, tuple[torch.Tensor, PackedTensor]] = {}

    def add_image(self, image: torch.Tensor) -> Any:
        """An image: float ones go as they are, others become float32 on arrival."""
        import torch

        if image.dtype.is_floating_point:
            return self.add_value(image)
        return self._add_tensor(image.as_subclass(torch.Tensor), is_image=True)

    def add_value(self, value: Any) -> Any:
        """A tensor's place; what is none or cannot be packed stays and goes on its own."""
        import torch

        if isinstance(value, torch.Tensor):
            # plain values in this machine's memory: not a class of its own, sparse, or one with a gradient
            is_strided = value.layout is torch.strided
            plain = type(value) is torch.Tensor and is_strided and value.device.type == "cpu"
            if plain and not value.requires_grad and not value.is_quantized:
                return self._add_tensor(value)
            self.apart_bytes += value.nbytes if is_strided else 0
        return value

    def _add_tensor(self, tensor: torch.Tensor, is_image: bool = False) -> PackedTensor:
        import torch

        known = self._packed.get(id(tensor))
        if known is not None and known[1].is_image == is_image:
            return known[1]
        strides = torch.empty_like(tensor, device="meta").stride()  # its own where it has no gaps
        offset = self.image_bytes if is_image else self.rest_bytes
        packed = PackedTensor(offset, tensor.nbytes, tensor.dtype, tuple(tensor.shape), strides, is_image)
        self._packed[id(tensor)] = tensor, packed
        taken = _ALIGNED_BYTES * math.ceil(tensor.nbytes / _ALIGNED_BYTES)
        self.image_bytes += taken if is_image else 0
        self.rest_bytes += 0 if is_image else taken
        return packed

    def fill_files(self) -> list[torch.Tensor]:
        """Shared memory with all the tensors in it, images first: their only copy on the way."""
        import torch

        apart = self.image_bytes and any(packed.stays_shared for _, packed in self._packed.values())
        sizes = [self.image_bytes, self.rest_bytes] if apart else [self.image_bytes + self.rest_bytes]
        shared = [torch.UntypedStorage._new_shared(max(1, size), device="cpu") for size in sizes]
        files = [torch.empty(0, dtype=torch.uint8).set_(storage) for storage in shared]
        parts = _find_parts(files, self.image_bytes)
        for tensor, packed in self._packed.values():
            packed.view_in(parts).copy_(tensor)
        return files
