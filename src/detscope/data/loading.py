"""From a data set to batches: order and views of the images, worker processes, and the way out of them.

Each pass draws one number from the loader's generator, and everything follows from that number: who
seeds the generator before a pass gets the same order and the same views again. What is drawn depends on the
pass and the image alone, never on which worker loads it: trainings with more or fewer workers see the same.

A batch leaves its worker in one piece: all of its tensors in one file of shared memory, or two. Sent one by
one, each tensor is a file of its own, whose descriptor the loop has to fetch from the worker: 0.3 ms and more
apiece, and a batch of eight images with masks has 56 of them. Images travel as uint8 and arrive as float32:
fresh pages of shared memory cost more than the arithmetic, at 640 px a float image takes four times the bytes
and 3 ms more. Everybody else sees float32 only.

What stays in shared memory keeps the whole file. So uint8 images, which are read once, and small tensors,
which are copied out, leave nothing behind; large ones (masks, float images), whose copies would cost as much
as packing saves, stay where they are: in a file of their own if there are uint8 images too.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from detscope.config.schema import DataSettings, TrainingSettings
from detscope.data.contract import DetectionDataset, Target
from detscope.errors import MachineError, UsageError
from detscope.machine.accelerator import find_accelerator

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

ItemKey = int | tuple[int, int]
"""The number of an image, or (number drawn for the pass, number of the image) where views change by pass."""

Batch = tuple[list[Any], list[Target]]

_ALIGNED_BYTES = 64  # as torch's own allocator does
_COPIED_BYTES = 2**17  # up to this size; so who keeps the labels of many batches does not keep the batches

# Borders between shapes, as ratios of width to height: portrait, nearly square, landscape.
_SHAPE_BORDERS = (0.5, 2 ** (-1 / 3), 2 ** (1 / 3), 2.0)

DEFAULT_PREFETCH_FACTOR = 2
SHARED_MEMORY = Path("/dev/shm")
_PAGE_BYTES = 4096
_SAMPLED_IMAGES = 8
# Beside the batches that wait: the one the loop works on, and the next while it is handed over.
_BATCHES_IN_FLIGHT = 2


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
    if type(value) is dict:
        return {key: _replace_leaves(item, replace) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replace_leaves(item, replace) for item in value)
    return replace(value)


def _find_parts(files: list[torch.Tensor], image_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
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


@dataclass
class BatchOrder:
    """A batch sampler for torch's loader; each iteration is one pass over the data."""

    images: int
    batch_size: int
    generator: torch.Generator
    shuffle: bool = True
    drop_last: bool = False
    shapes: Sequence[int] | None = None  # the shape of every image; None: batches of all shapes
    keys_with_pass: bool = False  # keys are (number of the pass, image), for views that change by pass
    rank: int = 0  # of `ranks` that draw the same order: each takes every n-th batch, all equally many
    ranks: int = 1

    def __len__(self) -> int:
        return self._count_all_batches() // self.ranks

    def _count_all_batches(self) -> int:
        whole = self.images / self.batch_size
        return math.floor(whole) if self.drop_last else math.ceil(whole)

    def __iter__(self) -> Iterator[list[ItemKey]]:
        import torch

        drawn = int(torch.randint(2**62, (), generator=self.generator))
        order = np.random.default_rng(drawn).permutation(self.images) if self.shuffle else range(self.images)
        indices = [int(index) for index in order]
        if self.shapes is None:
            batches = split_batches(indices, self.batch_size)
        else:
            batches = group_batches(indices, self.batch_size, self.shapes, drawn if self.shuffle else None)
        own = batches[: self._count_all_batches()][self.rank :: self.ranks]
        for batch in own[: len(self)]:
            yield [(drawn, index) for index in batch] if self.keys_with_pass else list(batch)


def split_batches(order: Sequence[int], batch_size: int) -> list[list[int]]:
    """Neighbours in the order, together."""
    return [list(order[start : start + batch_size]) for start in range(0, len(order), batch_size)]


def group_batches(
    order: Sequence[int], batch_size: int, shapes: Sequence[int], drawn: int | None
) -> list[list[int]]:
    """Batches of one shape; what is left over is batched from the flattest on, an incomplete batch last.

    `drawn` shuffles the batches, which would otherwise come in the order in which they filled up.
    """
    waiting: dict[int, list[int]] = {}
    batches: list[list[int]] = []
    for index in order:
        group = waiting.setdefault(shapes[index], [])
        group.append(index)
        if len(group) == batch_size:
            batches.append(waiting.pop(shapes[index]))
    rest = split_batches([index for shape in sorted(waiting) for index in waiting[shape]], batch_size)
    batches += [batch for batch in rest if len(batch) == batch_size]
    if drawn is not None:
        batches = [batches[place] for place in np.random.default_rng([drawn, 1]).permutation(len(batches))]
    return batches + [batch for batch in rest if len(batch) < batch_size]


def classify_shape(width: int, height: int) -> int:
    """A number for the shape of an image: equal for images that pad each other little."""
    return int(np.searchsorted(_SHAPE_BORDERS, width / height))


@dataclass(frozen=True)
class SharedMemoryNeed:
    """What the loader's workers will keep in shared memory, against what is there."""

    need_bytes: int
    free_bytes: int | None  # None: there is no such folder to look at
    batch_bytes: int
    batches: int


@dataclass(frozen=True)
class LoaderPlan:
    """A loader, what was decided about it, and what it needs."""

    loader: DataLoader[Any]
    notes: tuple[str, ...]
    shared_memory: SharedMemoryNeed | None  # None: no workers, no shared memory


def build_loader(
    dataset: DetectionDataset,
    training: TrainingSettings,
    device: str,
    *,
    shuffle: bool = True,
    seed: int,
    every_image: bool = False,
    data: DataSettings | None = None,
    share: tuple[int, int] = (0, 1),
    shm_path: Path = SHARED_MEMORY,
) -> LoaderPlan:
    """A loader of `(images, targets)` lists; refuses before the run when shared memory will not do.

    The last, smaller batch is left out, because it would be a step of its own kind, unless the data
    set has no full batch or `every_image` is asked for, as evaluation does. Order and views of a pass
    follow from the loader's generator. `data` tells whether batches are grouped by shape. `share` is
    this rank's number and how many ranks there are: each has batches of its own.
    """
    import torch
    from torch.utils.data import DataLoader

    class QuietLoader(DataLoader):  # type: ignore[type-arg]
        """torch warns of more workers than cores, at every pass; here that is a note of the run."""

        def check_worker_number_rationality(self) -> None:
            return None

    grouped = data is not None and data.group_by_aspect
    knows_sizes = hasattr(dataset, "image_size")
    sizes = map(dataset.image_size, range(len(dataset))) if grouped and knows_sizes else None
    notes = list(_list_ineffective(len(dataset), training, device, grouped and not knows_sizes))
    items = prefer_uint8(dataset)
    image_bytes = sample_item_bytes(items)  # also brings the decoders in before workers are forked
    generator = torch.Generator().manual_seed(seed)
    order = BatchOrder(
        len(dataset),
        training.batch_size,
        generator,
        shuffle,
        drop_last=len(dataset) >= training.batch_size and not every_image,
        shapes=None if sizes is None else [classify_shape(*size) for size in sizes],
        keys_with_pass=getattr(dataset, "augmentation", None) is not None,
        rank=share[0],
        ranks=share[1],
    )
    if share[1] > 1 and len(order) == 0:
        raise UsageError(
            f"{len(dataset)} images make fewer batches of {training.batch_size} than there are ranks"
            f" ({share[1]})",
            "use more images, a smaller --batch-size or fewer --ranks",
        )
    workers = training.num_workers
    need = check_shared_memory(image_bytes, training, shm_path=shm_path, notes=notes) if workers else None
    loader: DataLoader[Any] = QuietLoader(
        items,  # map-style by protocol
        batch_sampler=order,
        num_workers=workers,
        prefetch_factor=(training.prefetch_factor or DEFAULT_PREFETCH_FACTOR) if workers else None,
        collate_fn=collate_batch,
        pin_memory=find_accelerator(device).pins_memory and training.pin_memory is not False,
        persistent_workers=workers > 0,
        worker_init_fn=_start_worker,
        generator=generator,
    )
    return LoaderPlan(loader, tuple(notes), need)


def _list_ineffective(
    images: int, training: TrainingSettings, device: str, without_sizes: bool
) -> Iterator[str]:
    """Settings that mean nothing, or something else, for this data set and device."""
    if images < training.batch_size:
        yield f"the data set has {images} images: batches of {images} instead of {training.batch_size}"
    if without_sizes:
        yield "group_by_aspect has no effect: this data set does not tell the sizes of its images"
    if not training.num_workers and training.prefetch_factor is not None:
        yield f"prefetch_factor = {training.prefetch_factor} has no effect with num_workers = 0"
    if training.pin_memory and not find_accelerator(device).pins_memory:
        yield f"pin_memory = true has no effect on device {device}"
    if training.num_workers > (cores := count_cores()):
        yield f"{training.num_workers} loader workers share {cores} cores"


def count_cores() -> int:
    """Cores this process may be scheduled on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sample_item_bytes(dataset: DetectionDataset, samples: int = _SAMPLED_IMAGES) -> int:
    """Bytes that the largest of some images, spread over the data set, takes with its target."""
    if len(dataset) == 0:
        return 0
    step = max(1, len(dataset) // samples)
    return max(count_packed_bytes(*dataset[index]) for index in range(0, len(dataset), step)[:samples])


def check_shared_memory(
    image_bytes: int,
    training: TrainingSettings,
    *,
    shm_path: Path = SHARED_MEMORY,
    notes: list[str] | None = None,
) -> SharedMemoryNeed:
    """Compare what the workers' batches will take with what is free; raises when it is not enough."""
    # a file per batch, two where masks stay, each in whole pages
    batch_bytes = _PAGE_BYTES * (math.ceil(image_bytes * training.batch_size / _PAGE_BYTES) + 1)
    batches = (
        training.num_workers * (training.prefetch_factor or DEFAULT_PREFETCH_FACTOR) + _BATCHES_IN_FLIGHT
    )
    free_bytes = None
    if shm_path.is_dir():
        status = os.statvfs(shm_path)
        free_bytes = status.f_bavail * status.f_frsize
    need = SharedMemoryNeed(batches * batch_bytes, free_bytes, batch_bytes, batches)
    notes = [] if notes is None else notes
    if free_bytes is None:
        notes.append(f"shared memory: cannot tell, there is no {shm_path}")
    elif need.need_bytes > free_bytes:
        wanted_gib = math.ceil(1.25 * need.need_bytes / 2**30)
        fits = free_bytes // batch_bytes - _BATCHES_IN_FLIGHT
        fewer = f"num_workers = {fits} with prefetch_factor = 1 fits, " if fits >= 1 else ""
        raise MachineError(
            f"loader workers need {_in_mib(need.need_bytes)} of shared memory ({batches} batches of "
            f"{_in_mib(batch_bytes)}), {shm_path} has {_in_mib(free_bytes)}",
            f"{fewer}num_workers = 0 needs none; in Docker start with --shm-size={wanted_gib}g",
        )
    elif need.need_bytes > free_bytes / 2:
        tight = f"{_in_mib(need.need_bytes)} needed, {_in_mib(free_bytes)} free in {shm_path}"
        notes.append(f"shared memory is tight: {tight}")
    return need


def _in_mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"


def _start_worker(_worker_id: int) -> None:
    import numpy as np
    import torch

    torch.set_num_threads(1)  # workers beside each other are the parallelism
    seed = torch.initial_seed() % 2**32
    random.seed(seed)
    np.random.seed(seed)
