"""What happens around the steps of a training: the order of the data, checkpoints, evaluations, stopping."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from torch.utils.data import DataLoader

from detscope.analyze.accuracy import JUDGED_BY
from detscope.loops.train import Position
from detscope.machine.interrupts import expect_interrupt, interrupt_once
from detscope.record.recorder import Recorder
from detscope.sessions.train.checkpoints import (
    TrainingParts,
    latest_checkpoint,
    save_best,
    save_checkpoint,
    update_state,
)
from detscope.sessions.train.held_out import HeldOutImages

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@dataclass
class TrainingCourse:
    """One training, from its first pass to its last."""

    recorder: Recorder
    parts: TrainingParts
    order: PassOrder
    stop: StopRequest
    held_out: HeldOutImages | None
    eval_every: int | None
    epochs: int
    keep_checkpoints: bool
    say: Callable[[str], None]
    say_passes: bool = False
    best: dict[str, Any] | None = None
    _skip: int = 0

    def resume_from(self, position: Position, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was made; an evaluation that is due there comes first."""
        self.best = state["best"]
        self._skip = position.batches
        if not state["evaluated"] and position.batches == 0:
            last = latest_checkpoint(self.recorder.run)
            self._evaluate_if_due(position, last.folder if last else None)

    def begin_pass(self, epoch: int) -> None:
        """Before the first batch of a pass."""
        self.order.begin_pass(epoch, self._skip)
        self._skip = 0
        self.stop.in_steps = self.keep_checkpoints
        if self.say_passes:
            self.say(f"Epoch {epoch + 1}/{self.epochs}")

    def end_pass(self, position: Position) -> None:
        """After the last batch of a pass: what was learnt is safe before anything else is done with it."""
        self.recorder.rest()
        checkpoint = self.keep_checkpoint(position)
        self.stop.in_steps = False
        if self.stop.asked is not None:
            raise KeyboardInterrupt
        self._evaluate_if_due(position, checkpoint)

    def keep_checkpoint(self, position: Position) -> Path | None:
        """Write a checkpoint, if this training keeps them; its curve is on disk before it."""
        if not self.keep_checkpoints:
            return None
        self.recorder.tables.flush_rows()
        evaluated = position.batches > 0 or not self._is_due(position)  # no evaluation comes next
        state = {"evaluated": evaluated, "best": self.best}
        return save_checkpoint(self.recorder.run, self.parts, position, state)

    def _is_due(self, position: Position) -> bool:
        if self.held_out is None or self.eval_every is None:
            return False
        return position.epochs % self.eval_every == 0 or position.epochs >= self.epochs

    def _evaluate_if_due(self, position: Position, checkpoint: Path | None) -> None:
        if self.held_out is None or not self._is_due(position):
            return
        average = self.parts.average
        with average.in_place() if average is not None else nullcontext():
            rows = self.held_out.evaluate_model(self.parts.model, position.epochs, position.steps)
            self._keep_if_best(rows, position)
        self.recorder.writer.append_rows("accuracy", rows)
        self.recorder.tables.flush_rows()
        if checkpoint is not None:
            update_state(checkpoint, evaluated=True, best=self.best)
        self.say(f"epoch {position.epochs}: {_tell_accuracy(rows)}")

    def _keep_if_best(self, rows: Sequence[tuple[Any, ...]], position: Position) -> None:
        overall = {row[2]: row[5] for row in rows if row[3] == "AP" and row[4] is None}
        kind = next(kind for kind in JUDGED_BY if kind in overall)
        value = overall[kind]
        if value is None or (self.best is not None and value <= self.best["value"]):
            return
        where = {"epoch": position.epochs, "step": position.steps}
        self.best = {"kind": kind, "figure": "AP", "value": value, **where}
        if self.keep_checkpoints:
            save_best(self.recorder.run, self.parts.model, self.best)


def _tell_accuracy(rows: Sequence[tuple[Any, ...]]) -> str:
    """The headline figures in words: AP and AP50 of boxes, and of masks or keypoints where there are some."""
    words = []
    for kind in [kind for kind in reversed(JUDGED_BY) if any(row[2] == kind for row in rows)]:
        figures = {row[3]: row[5] for row in rows if row[2] == kind and row[4] is None}
        shown = [
            f"{name} {'undefined' if figures.get(name) is None else format(figures[name], '.3f')}"
            for name in ("AP", "AP50")
        ]
        words.append(f"{kind.removeprefix('coco_')} {', '.join(shown)}")
    return "; ".join(words)


class PassOrder:
    """Stands before a loader's batches: seeds their order anew for each pass, and may begin inside one.

    The order depends on seed and pass alone, so that a resumed training continues it.
    """

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._batches: Any = loader.batch_sampler
        self._generator: Any = loader.generator
        self._seed = seed
        self._pass = 0
        self._skip = 0
        vars(loader)["batch_sampler"] = self  # the loader refuses plain assignment once it is made

    def begin_pass(self, number: int, skip: int = 0) -> None:
        """The next pass has this number; its first `skip` batches were done before."""
        self._pass, self._skip = number, skip
        self._seed_pass()  # a loader draws the seeds of new workers before it asks for batches

    def __iter__(self) -> Iterator[Any]:
        # runs when the first batch is asked for: whatever the loader drew by then, the order is the same
        self._seed_pass()
        skip, self._skip = self._skip, 0
        for number, batch in enumerate(self._batches):
            if number >= skip:
                yield batch

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._batches, name)

    def _seed_pass(self) -> None:
        self._generator.manual_seed((self._seed * 1_000_003 + self._pass) % 2**63)


class StopRequest:
    """Ctrl-C, SIGTERM and SIGHUP: the step under way is finished to keep a checkpoint.

    The first signal is heard as a wish; a second one, or one outside of the steps, stops at once. Loader
    workers are forked while it listens and inherit it: a terminal's Ctrl-C reaches them too, and they go on
    until the loop has what it waits for.
    """

    def __init__(self) -> None:
        self.asked: int | None = None  # the signal that was heard
        self.in_steps = False
        self._process = os.getpid()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # signals are heard there only
            expect_interrupt()
            wanted = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._hear_signal) for number in wanted}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear_signal(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            if number != signal.SIGINT:  # SIGTERM is how the loop ends its workers
                raise SystemExit(128 + number)
            return
        at_once = self.asked is not None or not self.in_steps
        self.asked = number
        if at_once:
            interrupt_once()
            return
        # print() may be in the middle of a line of its own
        os.write(2, b"\nstopping after this step to keep a checkpoint; once more stops at once\n")
