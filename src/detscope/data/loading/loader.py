"""From a data set to batches: worker processes, seeds, and the shared memory they will need."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.config.schema import DataSettings, TrainingSettings
from detscope.data.contract import DetectionDataset
from detscope.data.loading.order import BatchOrder, classify_shape
from detscope.data.loading.packing import collate_batch, count_packed_bytes, prefer_uint8
from detscope.errors import MachineError, UsageError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

DEFAULT_PREFETCH_FACTOR = 2
SHARED_MEMORY = Path("/dev/shm")
_PAGE_BYTES = 4096
_SAMPLED_IMAGES = 8
# Beside the batches that wait: the one the loop works on, and the next while it is handed over.
_BATCHES_IN_FLIGHT = 2


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
        pin_memory=device.startswith("cuda") and training.pin_memory is not False,
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
    if training.pin_memory and not device.startswith("cuda"):
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
