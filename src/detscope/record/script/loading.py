"""Batches of any DataLoader: how long the loop waits for them, who made them, what is in them.

The script's data set and collate function are not touched: the fetcher between them and the worker is timed.
Forked workers inherit it; others are told through the loader's `worker_init_fn`, put back at once.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, dataloader, get_worker_info
from torch.utils.data._utils import fetch

from detscope import marks
from detscope.record.content import BatchContent, describe_batch
from detscope.record.foreign import Patches, drop_own_frames, frames_above
from detscope.record.loader import BatchTiming, RegionCollector, TimedBatch, count_tensors
from detscope.record.model.borders import tensors_in
from detscope.record.script.endings import forget_own_frames
from detscope.record.script.fetched import FetchedBatches
from detscope.record.script.pacing import StepEnd
from detscope.record.steps.nodes import PHASES
from detscope.record.transforms.timer import find_image, find_timer

if TYPE_CHECKING:
    from detscope.record.script.roots import RootModel
    from detscope.record.script.tracker import ScriptTracker

DATA = PHASES.index("data")
_IMAGE_DIMENSIONS = 3
_BATCH_DIMENSIONS = 4
_PLAIN = (torch.Tensor, torch.nn.Parameter, bool, int, float, str, type(None))
_MOST_DESCRIBED = 64
_FRAMES = 12  # to look at for a constructor
_ELSEWHERE = "batches were fetched in another thread: what the loop waits for them is part of `other`"
_FETCHERS = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
_ITERATORS = (dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter)


class FetchedBatch(TimedBatch):
    """A batch timed by the fetcher; those that a recorder times in its own way are left to it."""


def make_timed_fetch(
    plain: Callable[..., Any], here: Callable[[BatchTiming], None] | None
) -> Callable[..., Any]:
    """A fetcher's `fetch` that measures itself; in a worker the times travel with the batch."""

    @functools.wraps(plain)
    def fetch_timed(self: Any, index: Any) -> Any:
        info = get_worker_info()
        if info is None and here is None:
            return plain(self, index)
        collector, collate, timer = RegionCollector(), self.collate_fn, find_timer()
        collated_ns: list[int] = []

        def collate_timed(data: Any) -> Any:
            collated_ns.append(perf_counter_ns())
            with timer.region("collate", "collate", collate):
                return collate(data)

        self.collate_fn = collate_timed
        timer.draw_batch()
        try:
            with timer.timing(self.dataset, collate) as timed, marks.listening(collector):
                start_ns = perf_counter_ns()
                batch = plain(self, index)
                end_ns = perf_counter_ns()
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            self.collate_fn = collate
        timing = BatchTiming(-1 if info is None else info.id, os.getpid(), start_ns, end_ns)
        timing.images = len(index) if isinstance(index, (list, tuple)) else 1
        between_ns = collated_ns[0] if collated_ns else end_ns
        timing.spans = collector.spans or [("load", start_ns, between_ns)]
        timing.spans.append(("collate", between_ns, end_ns))
        timing.work = timer.end_batch(end_ns - start_ns, timed)
        if info is not None:
            timing.tensors = count_tensors(batch)
            return FetchedBatch(batch, timing)
        if here is not None:
            here(timing)
        return batch

    fetch_timed.detscope = True  # type: ignore[attr-defined]
    return fetch_timed


class WorkerStart:
    """Runs in a worker that was not forked, before the script's own `worker_init_fn`."""

    def __init__(self, own: Callable[[int], None] | None) -> None:
        self._own = own

    def __call__(self, worker: int) -> None:
        for fetcher in _FETCHERS:
            if not hasattr(vars(fetcher)["fetch"], "detscope"):
                fetcher.fetch = make_timed_fetch(fetcher.fetch, None)  # type: ignore[method-assign]
        if self._own is not None:
            self._own(worker)


def watch_loaders(patches: Patches, batches: StepBatches) -> None:
    """Listen to all loaders of this process."""
    for fetcher in _FETCHERS:
        patches.put(fetcher, "fetch", make_timed_fetch(vars(fetcher)["fetch"], batches.add_made))
    for iterator in _ITERATORS:
        _unwrap_batches(iterator, batches)
    patches.put(dataloader._BaseDataLoaderIter, "__next__", _make_next(batches))
    for name in ("__iter__", "_get_iterator"):  # subclasses have an `__iter__` of their own
        patches.put(DataLoader, name, _make_iter(name, batches))


def _unwrap_batches(iterator: Any, batches: StepBatches) -> None:
    """Stays when listening ends: workers that live on go on sending times."""
    plain = vars(iterator)["_next_data"]
    plain = getattr(plain, "__wrapped__", plain)

    @functools.wraps(plain)
    def next_data(self: Any) -> Any:
        try:
            data = plain(self)
        except BaseException as error:
            drop_own_frames(error)
            raise
        if isinstance(data, FetchedBatch):
            data.timing.arrived_ns = perf_counter_ns()
            batches.add_made(data.timing)
            return data.batch
        return data

    iterator._next_data = next_data


def _make_next(batches: StepBatches) -> Callable[[Any], Any]:
    plain = vars(dataloader._BaseDataLoaderIter)["__next__"]

    @functools.wraps(plain)
    def next_batch(self: Any) -> Any:
        heard = batches.ask_batch(self)
        end_waiting = batches.begin_waiting() if heard else lambda: None
        try:
            batch = plain(self)
        except StopIteration:
            end_waiting()
            if heard:
                batches.end_pass()
            raise
        except BaseException as error:
            end_waiting()
            forget_own_frames(error)  # a worker's traceback travels as text
            drop_own_frames(error)
            raise
        end_waiting()
        if heard:
            batches.add_batch(batch, self)
        return batch

    return next_batch


def _make_iter(name: str, batches: StepBatches) -> Callable[[Any], Any]:
    plain = vars(DataLoader)[name]

    @functools.wraps(plain)
    def iterate_loader(self: Any) -> Any:
        if not batches.ask_iterator(self):
            return plain(self)
        own = self.worker_init_fn
        context = self.multiprocessing_context or torch.multiprocessing
        told = self.num_workers > 0 and context.get_start_method() != "fork"
        if told:
            self.worker_init_fn = WorkerStart(own)
        end_waiting = batches.begin_waiting()
        try:
            iterator = plain(self)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            end_waiting()
            if told:
                self.worker_init_fn = own
        batches.passes[iterator] = _LoaderPass(self)
        return iterator

    return iterate_loader


class _LoaderPass:
    """What is known of an iterator: its loader, and how many of its batches were taken."""

    def __init__(self, loader: Any) -> None:
        self.loader = id(loader)
        self.taken = self.length = 0
        self.fetched = FetchedBatches()
        # its constructor is running: an iterator that is made there begins no pass yet
        self.made_ahead = any(
            frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is loader
            for frame in frames_above(sys._getframe(), _FRAMES)
        )
        if type(loader).__iter__ is not DataLoader.__iter__:  # such a one may serve pass after pass
            try:
                self.length = len(loader)
            except Exception:  # endless, or a stranger's own idea of a length
                self.length = 0

    @property
    def begins_again(self) -> bool:
        """Whether the next batch is the first of a pass that no new iterator was made for."""
        return self.length > 0 and self.taken % self.length == 0


class StepBatches:
    """What a step's batches were; told by loaders on behalf of the tracker, emptied at every border."""

    def __init__(self, tracker: ScriptTracker) -> None:
        self._tracker = tracker
        self.from_loaders: list[FetchedBatches] = []  # passes that gave batches in this step
        self._unknown = FetchedBatches()  # of iterators that were made before we listened
        self._latest = self._unknown  # that gave a batch
        self.timings: list[tuple[BatchTiming, int]] = []  # and the loop's waiting; -1: not got yet
        self.arguments: list[BatchContent] = []  # of models, where no loader tells
        self._next_arguments: list[BatchContent] = []  # after an optimizer stepped: perhaps of the next step
        self._given: tuple[Callable[[], Any], int] = (lambda: None, 0)  # the first of them, and its version
        self.transformed: list[tuple[BatchTiming, str]] = []  # whole batches, by the loop, and where
        self._described: dict[tuple[Any, ...], BatchContent] = {}  # what a lone tensor of a shape is
        self._waited_ns = 0
        self._fetcher: int | None = None  # a thread that asked for batches before any model was called
        # by iterator; that of a loader whose workers persist begins anew
        self.passes: weakref.WeakKeyDictionary[Any, _LoaderPass] = weakref.WeakKeyDictionary()
        self.fresh_pass = False
        self.loader = 0  # the one that was asked for its iterator or a batch last
        self.num_workers: int | None = None  # of that loader

    def clear_step(self, ended: StepEnd) -> None:
        """A step has ended, or what counts as none: that does not end the beginning of a pass."""
        for fetched in self.from_loaders if ended is StepEnd.DROPPED else ():
            fetched.drop_unused()
        self.from_loaders, self.timings, self.transformed = [], [], []
        self.arguments = self._next_arguments if ended is StepEnd.EARLIER else []
        self._next_arguments = []
        self.fresh_pass = self.fresh_pass and ended is StepEnd.DROPPED

    @property
    def without_loader(self) -> bool:
        """Whether this step knows of no loader, nor of transforms."""
        quiet = not (self.from_loaders or self.timings or self.transformed or self.fresh_pass)
        return quiet and self._latest is self._unknown

    def take_contents(self, iterations: int) -> list[BatchContent]:
        """Of the batches from loaders that a step of so many iterations used."""
        passes = self.from_loaders or [self._latest]  # all was fetched before: the last of a pass
        return [content for fetched in passes for content in fetched.take_used(iterations)]

    def add_arguments(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """The first arguments of a step, or of each iteration that it accumulates, where no loader tells."""
        if self._fetcher not in (None, self._tracker.owner):
            self._tracker.recording.note(_ELSEWHERE)
        self._fetcher = None
        pacer = self._tracker.pacer
        known = self._next_arguments if pacer.stepped else self.arguments
        if self.from_loaders or (known and (self._tracker.in_optimizer or not pacer.begins_iteration)):
            return  # closures go through the same batch again and again
        if not self._is_given_again((arguments, named)) or not known:
            known.append(self._describe_arguments((*arguments, named) if named else arguments))

    def _describe_arguments(self, given: tuple[Any, ...]) -> BatchContent:
        """What is in a model's arguments; of a lone tensor of images that is its shape, and is kept."""
        names = given[-1] if given and type(given[-1]) is dict else {}
        values = [*given[: len(given) - bool(names)], *names.values()]
        tensors = [one for one in values if isinstance(one, torch.Tensor)]
        lone = len(tensors) == 1 and tensors[0].ndim == _BATCH_DIMENSIONS and "image_id" not in names
        if not lone or any(type(one) not in _PLAIN for one in values):
            return describe_batch(given)
        key = (tensors[0].shape, len(values), *names)
        if key not in self._described:
            if len(self._described) >= _MOST_DESCRIBED:
                self._described.clear()
            self._described[key] = describe_batch(given)
        return self._described[key]

    def _is_given_again(self, arguments: Any) -> bool:
        """Whether the first tensor among them is that of the last iteration, and was not filled anew."""
        first = next((one for one in tensors_in(arguments) if not one.is_inference()), None)
        before, version = self._given
        self._given = (lambda: None, 0) if first is None else (weakref.ref(first), first._version)
        return first is not None and first is before() and first._version == version

    def ask_iterator(self, loader: Any) -> bool:
        """A loader is asked for its iterator; whether that is to be timed."""
        tracker = self._tracker
        if tracker.inside or self._fetches_for_others() or not tracker.listens_here():
            return False
        ended = tracker.pacer.ask_batch()
        if ended is StepEnd.NOTHING:
            ended = tracker.pacer.end_pass()
        tracker.recording.begin_pass(id(loader))
        tracker.cross_border(ended)
        self.fresh_pass, self.loader = True, id(loader)
        return True

    def _fetches_for_others(self) -> bool:
        """Before any model was called, a thread beside the main one may be one that only fetches."""
        if self._tracker.owner is not None or threading.current_thread() is threading.main_thread():
            return False
        self._fetcher = threading.get_ident()
        return True

    def ask_batch(self, iterator: Any) -> bool:
        """An iterator is asked for a batch; whether that is to be timed."""
        tracker = self._tracker
        if tracker.inside or not tracker.active or self._fetches_for_others():
            return False
        if not tracker.listens_here():
            tracker.recording.note(_ELSEWHERE)
            return False
        under_way = self.passes.get(iterator)
        ended = tracker.pacer.ask_batch()
        if under_way is not None:
            self.loader = under_way.loader
            if under_way.begins_again and (under_way.taken or under_way.made_ahead):
                ended = tracker.pacer.end_pass() if ended is StepEnd.NOTHING else ended
                tracker.recording.begin_pass(under_way.loader)
        tracker.cross_border(ended)
        return True

    def begin_waiting(self) -> Callable[[], None]:
        """Waiting for data begins, in bare steps too; call what is given back when it ends."""
        tracker = self._tracker
        tracker.inside += 1
        self._waited_ns = tracker.buffer.enter_node(DATA)

        def end_waiting() -> None:
            self._waited_ns = tracker.buffer.exit_node(DATA) - self._waited_ns
            tracker.inside -= 1

        return end_waiting

    def transform_batch(
        self,
        root: RootModel,
        plain: Callable[..., Any],
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The loop calls a module that trains nothing: one that gives images for images is a transform."""
        timer = find_timer()
        if timer.thread is not None:  # a part of such a one
            return plain(module, *args, **kwargs)
        calls_before, start_ns = self._tracker.forward_calls, perf_counter_ns()
        with timer.timing(module, themselves=True), timer.calling(module):
            result = plain(module, *args, **kwargs)
        timing = BatchTiming(-1, os.getpid(), start_ns, perf_counter_ns(), work=timer.take_work())
        taken, given = find_image(kwargs or args), find_image(result)
        gave = all(isinstance(one, torch.Tensor) and one.ndim >= _IMAGE_DIMENSIONS for one in (taken, given))
        called_model = self._tracker.forward_calls > calls_before
        root.count_transform(gave, called_model)
        if gave and not called_model:
            timing.images = given.shape[0] if given.ndim > _IMAGE_DIMENSIONS else 1
            self.transformed.append((timing, "batch" if given.is_cpu else "device"))
        return result

    def add_made(self, timing: BatchTiming) -> None:
        """A batch was made, here or in a worker; it may be made ahead of the one that is waited for."""
        if self._tracker.active:
            self.timings.append((timing, -1))

    def add_batch(self, batch: Any, iterator: Any) -> None:
        """The loop has its batch."""
        tracker = self._tracker
        self.num_workers = getattr(iterator, "_num_workers", None)
        under_way = self.passes.get(iterator)
        if under_way is not None:
            self.fresh_pass = self.fresh_pass or under_way.begins_again
            under_way.taken += 1
        tracker.pacer.add_batch()
        self._latest = self._unknown if under_way is None else under_way.fetched
        self._latest.add_batch(describe_batch(batch))
        if self._latest not in self.from_loaders:
            self.from_loaders.append(self._latest)
        timing = None
        if self.timings and self.timings[-1][1] < 0:
            timing = self.timings[-1][0]
            self.timings[-1] = (timing, self._waited_ns)
        tracker.look_safely(lambda: tracker.recording.watch_inputs(batch, timing))

    def end_pass(self) -> None:
        """An iterator has no more batches."""
        self._tracker.cross_border(self._tracker.pacer.end_pass())
