"""Batches of any DataLoader: how long the loop waits for them, and what their making took in the workers.

The script's data set and collate function are not touched: the fetcher between them and the worker is timed.
Forked workers inherit it; others are told through the loader's `worker_init_fn`, put back at once.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, dataloader, get_worker_info
from torch.utils.data._utils import fetch

from detscope import marks
from detscope.record.loader import BatchTiming, TimedBatch, _Collector, count_tensors
from detscope.record.patches import Patches
from detscope.record.script.endings import forget_own_frames

_FETCHERS = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
_ITERATORS = (dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter)


class FetchedBatch(TimedBatch):
    """A batch timed by the fetcher; those that a recorder times in its own way are left to it."""


class LoaderListener(Protocol):
    """Who wants to know about batches."""

    def asks_iterator(self, loader: Any) -> bool:
        """A loader is asked for its iterator; whether that is to be timed."""

    def iterates(self, loader: Any, iterator: Any) -> None:
        """A loader begins a pass over its batches with this iterator."""

    def asks_batch(self, iterator: Any) -> bool:
        """An iterator is asked for a batch; whether that is to be timed."""

    def made_batch(self, timing: BatchTiming) -> None:
        """A batch was made, here or in a worker."""

    def gets_batch(self, batch: Any, iterator: Any) -> None:
        """The loop has its batch."""

    def pass_ends(self) -> None:
        """The iterator has no more."""

    def waits(self) -> Callable[[], None]:
        """Waiting begins; call what it returns when it ends."""


def timed_fetch(plain: Callable[..., Any], here: Callable[[BatchTiming], None] | None) -> Callable[..., Any]:
    """A fetcher's `fetch` that measures itself; in a worker the times travel with the batch."""

    @functools.wraps(plain)
    def fetch_timed(self: Any, index: Any) -> Any:
        info = get_worker_info()
        if info is None and here is None:
            return plain(self, index)
        collector, collate = _Collector(), self.collate_fn
        collated_ns: list[int] = []

        def collate_timed(data: Any) -> Any:
            collated_ns.append(perf_counter_ns())
            return collate(data)

        start_ns = perf_counter_ns()
        self.collate_fn = collate_timed
        try:
            with marks.listening(collector):
                batch = plain(self, index)
        finally:
            self.collate_fn = collate
        end_ns = perf_counter_ns()
        timing = BatchTiming(-1 if info is None else info.id, os.getpid(), start_ns, end_ns)
        timing.images = len(index) if isinstance(index, (list, tuple)) else 1
        between_ns = collated_ns[0] if collated_ns else end_ns
        timing.spans = collector.spans or [("load", start_ns, between_ns)]
        timing.spans.append(("collate", between_ns, end_ns))
        if info is None:
            if here is not None:
                here(timing)
            return batch
        timing.tensors = count_tensors(batch)
        return FetchedBatch(batch, timing)

    fetch_timed.detscope = True  # type: ignore[attr-defined]
    return fetch_timed


class WorkerStart:
    """Runs in a worker that was not forked, before the script's own `worker_init_fn`."""

    def __init__(self, own: Callable[[int], None] | None) -> None:
        self._own = own

    def __call__(self, worker: int) -> None:
        for fetcher in _FETCHERS:
            if not hasattr(vars(fetcher)["fetch"], "detscope"):
                fetcher.fetch = timed_fetch(fetcher.fetch, None)  # type: ignore[method-assign]
        if self._own is not None:
            self._own(worker)


def watch_loaders(patches: Patches, listener: LoaderListener) -> None:
    """Listen to all loaders of this process."""
    for fetcher in _FETCHERS:
        patches.put(fetcher, "fetch", timed_fetch(vars(fetcher)["fetch"], listener.made_batch))
    for iterator in _ITERATORS:
        _unwrap_batches(iterator, listener)
    patches.put(dataloader._BaseDataLoaderIter, "__next__", _next(listener))
    for name in ("__iter__", "_get_iterator"):  # subclasses have an `__iter__` of their own
        patches.put(DataLoader, name, _iter(name, listener))


def _unwrap_batches(iterator: Any, listener: LoaderListener) -> None:
    """Stays when listening ends: workers that live on go on sending times."""
    plain = vars(iterator)["_next_data"]
    plain = getattr(plain, "__wrapped__", plain)

    @functools.wraps(plain)
    def next_data(self: Any) -> Any:
        data = plain(self)
        if isinstance(data, FetchedBatch):
            data.timing.arrived_ns = perf_counter_ns()
            listener.made_batch(data.timing)
            return data.batch
        return data

    iterator._next_data = next_data


def _next(listener: LoaderListener) -> Callable[[Any], Any]:
    plain = vars(dataloader._BaseDataLoaderIter)["__next__"]

    @functools.wraps(plain)
    def next_batch(self: Any) -> Any:
        if not listener.asks_batch(self):
            return plain(self)
        ended = listener.waits()
        try:
            batch = plain(self)
        except StopIteration:
            ended()
            listener.pass_ends()
            raise
        except BaseException as error:
            ended()
            forget_own_frames(error)  # a worker's traceback travels as text
            raise
        ended()
        listener.gets_batch(batch, self)
        return batch

    return next_batch


def _iter(name: str, listener: LoaderListener) -> Callable[[Any], Iterator[Any]]:
    plain = vars(DataLoader)[name]

    @functools.wraps(plain)
    def iterate(self: Any) -> Any:
        if not listener.asks_iterator(self):
            return plain(self)
        own = self.worker_init_fn
        told = self.num_workers > 0 and _start_method(self) != "fork"
        if told:
            self.worker_init_fn = WorkerStart(own)
        ended = listener.waits()
        try:
            iterator = plain(self)
        finally:
            ended()
            if told:
                self.worker_init_fn = own
        listener.iterates(self, iterator)
        return iterator

    return iterate


def _start_method(loader: Any) -> str:
    context = loader.multiprocessing_context or torch.multiprocessing
    return str(context.get_start_method())
