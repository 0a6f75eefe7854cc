"""What a step's batches were: how long the loop waited for them, who made them, what is in them."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from detscope.record.content import BatchContent
from detscope.record.loader import BatchTiming
from detscope.record.steps.nodes import PHASES
from detscope.record.script.content import describe
from detscope.record.script.pacing import Ended

if TYPE_CHECKING:
    from detscope.record.script.tracker import Tracker

DATA = PHASES.index("data")
_FRAMES = 12  # to look at for a constructor
_ELSEWHERE = "batches were fetched in another thread: what the loop waits for them is part of `other`"


class _Pass:
    """What is known of an iterator: its loader, and how many of its batches were taken."""

    def __init__(self, loader: Any) -> None:
        self.loader = id(loader)
        self.taken = 0
        self.made_ahead = _is_being_made(loader)
        # one of a class with an `__iter__` of its own may serve pass after pass
        self.length = _length(loader) if type(loader).__iter__ is not DataLoader.__iter__ else 0

    @property
    def begins_again(self) -> bool:
        """Whether the next batch is the first of a pass that no new iterator was made for."""
        return self.length > 0 and self.taken % self.length == 0


def _is_being_made(loader: Any) -> bool:
    """Whether its constructor is running: an iterator that is made there begins no pass yet."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is loader:
            return True
        frame = frame.f_back
    return False


def _length(loader: Any) -> int:
    try:
        return len(loader)
    except Exception:  # endless, or a stranger's own idea of a length
        return 0


class Batches:
    """Listens to loaders on behalf of the tracker; emptied at every border."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._contents: list[BatchContent] = []
        self._timings: list[tuple[BatchTiming, int]] = []
        self._arguments: list[BatchContent] = []  # of models, where no loader tells
        self._next_arguments: list[BatchContent] = []  # after an optimizer stepped: perhaps of the next step
        self._waited_ns = 0
        self._fetcher: int | None = None  # a thread that asked for batches before any model was called
        self._passes: weakref.WeakKeyDictionary[Any, _Pass] = weakref.WeakKeyDictionary()
        self.fresh_pass = False
        self.loader = 0  # the one that was asked for its iterator or a batch last
        self.num_workers: int | None = None  # of that loader

    def clear(self, ended: Ended) -> None:
        """A step has ended, or what counts as none: that does not end the beginning of a pass."""
        self._contents, self._timings = [], []
        self._arguments = self._next_arguments if ended is Ended.EARLIER else []
        self._next_arguments = []
        self.fresh_pass = self.fresh_pass and ended is Ended.DROPPED

    @property
    def contents(self) -> list[BatchContent]:
        """Of the step's batches; without a loader, of what the model was called with."""
        return self._contents or self._arguments

    @property
    def asked(self) -> bool:
        """Whether the step has a batch of a loader."""
        return bool(self._contents)

    @property
    def timings(self) -> list[tuple[BatchTiming, int]]:
        """Of those that the loop has got, with its waiting."""
        return [(timing, waited_ns) for timing, waited_ns in self._timings if waited_ns >= 0]

    def model_called(self, arguments: tuple[Any, ...]) -> None:
        """The first arguments of a step, or of each iteration that it accumulates, where no loader tells."""
        if self._fetcher not in (None, self._tracker.owner):
            self._tracker.recording.note(_ELSEWHERE)
        self._fetcher = None
        pacer = self._tracker.pacer
        known = self._next_arguments if pacer.stepped else self._arguments
        if not self._contents and (pacer.begins_iteration or not known):
            known.append(describe(arguments))

    # ---- told by loaders

    def asks_iterator(self, loader: Any) -> bool:
        """A loader is asked for its iterator."""
        tracker = self._tracker
        if tracker.inside or self._fetches_for_others() or not tracker.listens():
            return False
        ended = tracker.pacer.asks_batch()
        if ended is Ended.NOTHING:
            ended = tracker.pacer.pass_ends()
        tracker.recording.begins_pass(id(loader))
        tracker.border(ended)
        self.fresh_pass, self.loader = True, id(loader)
        return True

    def iterates(self, loader: Any, iterator: Any) -> None:
        """A loader begins a pass; the iterator of one whose workers persist begins anew."""
        self._passes[iterator] = _Pass(loader)

    def _fetches_for_others(self) -> bool:
        """Before any model was called, a thread beside the main one may be one that only fetches."""
        if self._tracker.owner is not None or threading.current_thread() is threading.main_thread():
            return False
        self._fetcher = threading.get_ident()
        return True

    def asks_batch(self, iterator: Any) -> bool:
        """The next batch is asked for."""
        tracker = self._tracker
        if tracker.inside or not tracker.active or self._fetches_for_others():
            return False
        if not tracker.listens():
            tracker.recording.note(_ELSEWHERE)
            return False
        under_way = self._passes.get(iterator)
        ended = tracker.pacer.asks_batch()
        if under_way is not None:
            self.loader = under_way.loader
            if under_way.begins_again and (under_way.taken or under_way.made_ahead):
                ended = tracker.pacer.pass_ends() if ended is Ended.NOTHING else ended
                tracker.recording.begins_pass(under_way.loader)
        tracker.border(ended)
        return True

    def waits(self) -> Callable[[], None]:
        """Waiting for data begins; it is written in bare steps too."""
        tracker = self._tracker
        tracker.inside += 1
        self._waited_ns = tracker.buffer.enter(DATA)

        def end() -> None:
            self._waited_ns = tracker.buffer.exit(DATA) - self._waited_ns
            tracker.inside -= 1

        return end

    def made_batch(self, timing: BatchTiming) -> None:
        """A batch was made; it may be made ahead of the one that is waited for."""
        if self._tracker.active:
            self._timings.append((timing, -1))

    def gets_batch(self, batch: Any, iterator: Any) -> None:
        """The loop has its batch."""
        tracker = self._tracker
        self.num_workers = getattr(iterator, "_num_workers", None)
        under_way = self._passes.get(iterator)
        if under_way is not None:
            self.fresh_pass = self.fresh_pass or under_way.begins_again
            under_way.taken += 1
        tracker.pacer.gets_batch()
        self._contents.append(describe(batch))
        timing = None
        if self._timings and self._timings[-1][1] < 0:
            timing = self._timings[-1][0]
            self._timings[-1] = (timing, self._waited_ns)
        tracker.look(lambda: tracker.recording.arrived(batch, timing))

    def pass_ends(self) -> None:
        """A loader has no more batches."""
        self._tracker.border(self._tracker.pacer.pass_ends())
