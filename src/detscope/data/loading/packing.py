"""A batch leaves its loader worker in one piece: all of its tensors in one file of shared memory, or two.

Sent one by one, each tensor is a file of its own, whose descriptor the loop has to fetch from the worker:
0.3 ms and more apiece, and a batch of eight images with masks has 56 of them.

What stays in shared memory keeps the whole file. So uint8 images, which are read once, and small tensors,
which are copied out, leave nothing behind; large ones (masks, float images), whose copies would cost as much
as packing saves, stay where they are: in a file of their own if there are uint8 images too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from detscope.data.contract import Target
from detscope.data.loading.views import to_float

if TYPE_CHECKING:
    import torch

Batch = tuple[list[Any], list[Target]]

_ALIGNED_BYTES = 64  # as torch's own allocator does
_COPIED_BYTES = 2**17  # up to this size; so who keeps the labels of many batches does not keep the batches


class Place(NamedTuple):
    """Where a tensor lies, among the images or in the rest, and how it is to arrive."""

    offset: int
    bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    image: bool  # a uint8 image, which arrives as float32

    @property
    def stays(self) -> bool:
        """Whether it stays in the shared memory."""
        return not self.image and self.bytes > _COPIED_BYTES

    def tensor(self, parts: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The tensor that lies there; no copy."""
        import torch

        part, empty = parts[0 if self.image else 1], torch.empty(0, dtype=self.dtype)
        start = (part.storage_offset() + self.offset) // self.dtype.itemsize
        return empty.set_(part.untyped_storage(), start, self.shape, self.strides)


class PackedBatch:
    """What a worker sends; unpickles as `(images, targets)`."""

    def __init__(self, images: Sequence[torch.Tensor], targets: Sequence[Target]) -> None:
        plan = _Plan()
        self._images = [plan.image(image) for image in images]
        self._targets = [plan.of(target) for target in targets]
        self._image_bytes = plan.image_bytes
        self.tensors = plan.filled()  # what is sent: one file of shared memory, or two

    def __reduce__(self) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
        return unpack, (self.tensors, self._image_bytes, self._images, self._targets)


def unpack(files: list[torch.Tensor], image_bytes: int, images: list[Any], targets: list[Any]) -> Batch:
    """The batch as the loop gets it; runs while the loader takes it out of the queue."""
    arrive = _Arrival(_parts(files, image_bytes)).of
    return arrive(images), arrive(targets)


def _parts(files: list[torch.Tensor], image_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where images lie and where the rest does."""
    return files[0], files[1] if len(files) > 1 else files[0][image_bytes:]


def packed_bytes(image: torch.Tensor, target: Target) -> int:
    """Shared memory that an item takes on its way."""
    plan = _Plan()
    plan.image(image)
    plan.of(target)
    return plan.image_bytes + plan.rest_bytes + plan.apart_bytes


class _Plan:
    """Gives every tensor its place; one that is found twice has one place."""

    def __init__(self) -> None:
        self.image_bytes = self.rest_bytes = 0
        self.apart_bytes = 0  # of tensors that go on their own
        self._placed: dict[int, tuple[torch.Tensor, Place]] = {}

    def image(self, image: torch.Tensor) -> Any:
        """An image: float ones go as they are, others become float32 on arrival."""
        import torch

        if image.dtype.is_floating_point:
            return self.of(image)
        return self._place(image.as_subclass(torch.Tensor), image=True)

    def of(self, value: Any) -> Any:
        """The same value with places instead of tensors; what cannot be packed stays and goes on its own."""
        import torch

        if isinstance(value, torch.Tensor):
            if _packable(value):
                return self._place(value)
            self.apart_bytes += value.nbytes if value.layout is torch.strided else 0
        if type(value) is dict:
            return {key: self.of(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.of(item) for item in value)
        return value

    def _place(self, tensor: torch.Tensor, image: bool = False) -> Place:
        import torch

        known = self._placed.get(id(tensor))
        if known is not None and known[1].image == image:
            return known[1]
        strides = torch.empty_like(tensor, device="meta").stride()  # its own where it has no gaps
        offset = self.image_bytes if image else self.rest_bytes
        place = Place(offset, tensor.nbytes, tensor.dtype, tuple(tensor.shape), strides, image)
        self._placed[id(tensor)] = tensor, place
        taken = _ALIGNED_BYTES * math.ceil(tensor.nbytes / _ALIGNED_BYTES)
        self.image_bytes += taken if image else 0
        self.rest_bytes += 0 if image else taken
        return place

    def filled(self) -> list[torch.Tensor]:
        """Shared memory with all the tensors in it, images first: their only copy on the way."""
        apart = self.image_bytes and any(place.stays for _, place in self._placed.values())
        sizes = [self.image_bytes, self.rest_bytes] if apart else [self.image_bytes + self.rest_bytes]
        files = [_shared(size) for size in sizes]
        parts = _parts(files, self.image_bytes)
        for tensor, place in self._placed.values():
            place.tensor(parts).copy_(tensor)
        return files


def _shared(size: int) -> torch.Tensor:
    """Bytes in a new file of shared memory."""
    import torch

    storage = torch.UntypedStorage._new_shared(max(1, size), device="cpu")
    return torch.empty(0, dtype=torch.uint8).set_(storage)


class _Arrival:
    """Puts tensors back where their places are."""

    def __init__(self, parts: tuple[torch.Tensor, torch.Tensor]) -> None:
        self._parts = parts
        self._arrived: dict[int, torch.Tensor] = {}

    def of(self, value: Any) -> Any:
        """The value as it was before packing."""
        if isinstance(value, Place):
            if id(value) not in self._arrived:
                self._arrived[id(value)] = self._tensor(value)
            return self._arrived[id(value)]
        if type(value) is dict:
            return {key: self.of(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.of(item) for item in value)
        return value

    def _tensor(self, place: Place) -> torch.Tensor:
        tensor = place.tensor(self._parts)
        if place.image:
            return to_float(tensor)
        return tensor if place.stays else tensor.clone()


def _packable(tensor: torch.Tensor) -> bool:
    """Plain values in this machine's memory: not a class of its own, sparse, or one with a gradient."""
    import torch

    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
    return plain and not tensor.requires_grad and not tensor.is_quantized
