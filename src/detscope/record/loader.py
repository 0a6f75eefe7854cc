"""Loader workers, measured where the work happens: inside the worker; the times travel with the batch.

`perf_counter_ns` reads the system's monotonic clock, which all processes of a machine share, so
worker times and loop times lie on one time line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from detscope import marks
from detscope.record.transforms.timer import BatchWork, find_timer

RegionSpan = tuple[str, int, int]  # region, start, end
_TimedSample = tuple[Any, list[RegionSpan], int]  # with its regions and its start
_NO_TENSORS = frozenset((int, float, str, bool, bytes, type(None)))
_MOST_LOOKED_AT = 10_000  # things in a batch: in a worker this takes a millisecond


@dataclass
class BatchTiming:
    """What a worker did for one batch."""

    worker: int  # -1: loaded in the loop's own process
    pid: int
    start_ns: int
    end_ns: int = 0
    images: int = 0
    spans: list[RegionSpan] = field(default_factory=list)
    work: BatchWork | None = None  # by transform; None: not told
    tensors: int | None = None  # that the worker sends, each a file of shared memory; None: cannot tell
    arrived_ns: int = 0  # when the loop had it

    def receive_ns(self, wait_ns: int) -> int | None:
        """Part of the loop's waiting that came after the worker had made the batch; None without one."""
        return None if self.worker < 0 else max(0, min(wait_ns, self.arrived_ns - self.end_ns))


@dataclass
class TimedBatch:
    """A batch with the times of its making; unwrapped before the loop sees it."""

    batch: Any
    timing: BatchTiming

    def pin_memory(self) -> TimedBatch:
        """The loader pins batches through this method."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return type(self)(pin_memory(self.batch), self.timing)


class RegionCollector:
    """The listener inside a worker: keeps the regions of the sample being read."""

    def __init__(self) -> None:
        self.spans: list[RegionSpan] = []

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Measure a region."""
        start_ns = perf_counter_ns()
        try:
            with find_timer().region(name):
                yield
        finally:
            self.spans.append((name, start_ns, perf_counter_ns()))

    phase = region


class TimedDataset:
    """A data set whose items carry their times; everything else is the data set's own."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, indices: list[Any]) -> list[_TimedSample]:
        """The samples of a batch, one by one."""
        timer = find_timer()
        timer.draw_batch()
        with timer.timing(self._dataset):
            return [self._read_sample(index) for index in indices]

    def __getitem__(self, index: Any) -> _TimedSample:
        with find_timer().timing(self._dataset):
            return self._read_sample(index)

    def _read_sample(self, index: Any) -> _TimedSample:
        collector = RegionCollector()
        start_ns = perf_counter_ns()
        with marks.listening(collector):
            sample = self._dataset[index]
        if not collector.spans:  # a data set that marks nothing: all of it is loading
            collector.spans.append(("load", start_ns, perf_counter_ns()))
        return sample, collector.spans, start_ns

    def __getattr__(self, name: str) -> Any:
        # unpickling asks before there is a data set
        if name.startswith("__") or name == "_dataset":
            raise AttributeError(name)
        return getattr(self._dataset, name)


class TimedCollate:
    """Collates timed samples with the loader's own function."""

    def __init__(self, collate: Any) -> None:
        self._collate = collate

    def __call__(self, samples: list[_TimedSample]) -> TimedBatch:
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        timing = BatchTiming(-1 if info is None else info.id, os.getpid(), samples[0][2])
        for _, spans, _ in samples:
            timing.spans += spans
        timer = find_timer()
        start_ns = perf_counter_ns()
        with timer.timing(self._collate) as timed, timer.region("collate", "collate", self._collate):
            batch = self._collate([sample for sample, _, _ in samples])
        timing.end_ns = perf_counter_ns()
        timing.spans.append(("collate", start_ns, timing.end_ns))
        timing.work = timer.end_batch(timing.end_ns - timing.start_ns, timed)
        timing.images = len(samples)
        timing.tensors = None if info is None else count_tensors(batch)
        return TimedBatch(batch, timing)


def count_tensors(batch: Any) -> int | None:
    """Tensors of a batch as a worker sends it; a packed batch holds what it sends. None: too much to look at.

    What a batch does when it is asked for a name, and may not have it, is its own: nothing is asked.
    """
    import torch

    from detscope.record.model.borders import attributes_of, items_of

    found, waiting, left = set(), [attributes_of(batch, type(batch)).get("tensors", batch)], _MOST_LOOKED_AT
    seen: set[int] = set()  # of containers: one may hold itself
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            found.add(id(value))
        elif kind not in _NO_TENSORS and id(value) not in seen:
            seen.add(id(value))
            held = items_of(value, kind)
            left -= len(held)
            if left < 0:
                return None
            waiting += held
    return len(found)


def instrument_iterator(loader: Iterable[Any]) -> Iterator[Any]:
    """An iterator over the loader; where it is a map-style DataLoader, its batches are `TimedBatch`es."""
    from torch.utils.data import DataLoader, IterableDataset

    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return iter(loader)
    if loader.batch_sampler is None or isinstance(loader.dataset, TimedDataset):
        return iter(loader)
    dataset, collate = loader.dataset, loader.collate_fn
    # the iterator (and its workers) take what they find now; the user's loader is put back at once
    vars(loader)["dataset"], loader.collate_fn = TimedDataset(dataset), TimedCollate(collate)
    try:
        return iter(loader)
    finally:
        vars(loader)["dataset"], loader.collate_fn = dataset, collate


def forget_workers(loader: Iterable[Any]) -> None:
    """Let go of persistent workers that send timed batches, so that a later pass starts plain ones."""
    from detscope.record.model.borders import attributes_of

    own = attributes_of(loader, type(loader))
    if own.get("_iterator") is not None:
        own["_iterator"] = None


def unwrap_batch(item: Any) -> tuple[Any, BatchTiming | None]:
    """The plain batch and, if it has them, its times."""
    if isinstance(item, TimedBatch):
        item.timing.arrived_ns = perf_counter_ns()
        return item.batch, item.timing
    return item, None
