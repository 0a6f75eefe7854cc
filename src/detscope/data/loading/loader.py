"""From a data set to batches: worker processes, seeds, and the shared memory they will need."""

from __future__ import annotations

import math
import os
import random
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

    notes: list[str] = []
    workers = training.num_workers
    items = prefer_uint8(dataset)
    image_bytes = sample_item_bytes(items)  # also brings the decoders in before workers are forked
    generator = torch.Generator().manual_seed(seed)
    order = BatchOrder(
        len(dataset),
        training.batch_size,
        generator,
        shuffle,
        drop_last=_drop_last(len(dataset), training.batch_size, notes) and not every_image,
        shapes=_classify_shapes(dataset, notes) if data is not None and data.group_by_aspect else None,
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
    need = check_shared_memory(image_bytes, training, shm_path=shm_path, notes=notes) if workers else None
    options = {
        "batch_sampler": order,
        "num_workers": workers,
        "prefetch_factor": _prefetch_factor(training, notes),
        "collate_fn": collate_batch,
        "pin_memory": _pin_memory(training, device, notes),
        "persistent_workers": workers > 0,
        "worker_init_fn": _start_worker,
        "generator": generator,
    }
    return LoaderPlan(_make_loader(items, options, notes), tuple(notes), need)


def _make_loader(dataset: Any, options: dict[str, Any], notes: list[str]) -> DataLoader[Any]:
    from torch.utils.data import DataLoader

    class QuietLoader(DataLoader):  # type: ignore[type-arg]
        """torch warns of more workers than cores, at every pass; here that is a note of the run."""

        def check_worker_number_rationality(self) -> None:
            return None

    loader: DataLoader[Any] = QuietLoader(dataset, **options)  # map-style by protocol
    cores = count_cores()
    if options["num_workers"] > cores:
        notes.append(f"{options['num_workers']} loader workers share {cores} cores")
    return loader


def count_cores() -> int:
    """Cores this process may be scheduled on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _classify_shapes(dataset: DetectionDataset, notes: list[str]) -> list[int] | None:
    if not hasattr(dataset, "image_size"):
        notes.append("group_by_aspect has no effect: this data set does not tell the sizes of its images")
        return None
    return [classify_shape(*dataset.image_size(index)) for index in range(len(dataset))]


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
    need = SharedMemoryNeed(batches * batch_bytes, _free_bytes(shm_path), batch_bytes, batches)
    if need.free_bytes is None:
        if notes is not None:
            notes.append(f"shared memory: cannot tell, there is no {shm_path}")
        return need
    if need.need_bytes > need.free_bytes:
        raise MachineError(
            f"loader workers need {_in_mib(need.need_bytes)} of shared memory ({batches} batches of "
            f"{_in_mib(batch_bytes)}), {shm_path} has {_in_mib(need.free_bytes)}",
            _shared_memory_hint(need),
        )
    if notes is not None and need.need_bytes > need.free_bytes / 2:
        notes.append(
            f"shared memory is tight: {_in_mib(need.need_bytes)} needed, "
            f"{_in_mib(need.free_bytes)} free in {shm_path}"
        )
    return need


def _shared_memory_hint(need: SharedMemoryNeed) -> str:
    wanted_gib = math.ceil(1.25 * need.need_bytes / 2**30)
    fits = (need.free_bytes or 0) // need.batch_bytes - _BATCHES_IN_FLIGHT
    fewer = f"num_workers = {fits} with prefetch_factor = 1 fits, " if fits >= 1 else ""
    return f"{fewer}num_workers = 0 needs none; in Docker start with --shm-size={wanted_gib}g"


def _free_bytes(shm_path: Path) -> int | None:
    if not shm_path.is_dir():
        return None
    status = os.statvfs(shm_path)
    return status.f_bavail * status.f_frsize


def _in_mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"


def _prefetch_factor(training: TrainingSettings, notes: list[str]) -> int | None:
    if training.num_workers:
        return training.prefetch_factor or DEFAULT_PREFETCH_FACTOR
    if training.prefetch_factor is not None:
        notes.append(f"prefetch_factor = {training.prefetch_factor} has no effect with num_workers = 0")
    return None


def _pin_memory(training: TrainingSettings, device: str, notes: list[str]) -> bool:
    on_cuda = device.startswith("cuda")
    if training.pin_memory and not on_cuda:
        notes.append(f"pin_memory = true has no effect on device {device}")
    return on_cuda and training.pin_memory is not False


def _drop_last(images: int, batch_size: int, notes: list[str]) -> bool:
    if images < batch_size:
        notes.append(f"the data set has {images} images: batches of {images} instead of {batch_size}")
        return False
    return True


def _start_worker(_worker_id: int) -> None:
    import numpy as np
    import torch

    torch.set_num_threads(1)  # workers beside each other are the parallelism
    seed = torch.initial_seed() % 2**32
    random.seed(seed)
    np.random.seed(seed)
