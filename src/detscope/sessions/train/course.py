"""What happens around the steps of a training: checkpoints, evaluations, the best weights, stopping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detscope.analyze.curve import JUDGED_BY
from detscope.sessions.train.checkpoints import (
    TrainingParts,
    latest_checkpoint,
    save_best,
    save_checkpoint,
    update_state,
)
from detscope.sessions.train.held_out import HeldOut
from detscope.sessions.train.course import StopRequest

if TYPE_CHECKING:
    from pathlib import Path

    from detscope.loops.train import Position
    from detscope.record.recorder import Recorder
    from detscope.sessions.train.course import PassOrder


@dataclass
class Course:
    """One training, from its first pass to its last."""

    recorder: Recorder
    parts: TrainingParts
    order: PassOrder
    stop: StopRequest
    held_out: HeldOut | None
    eval_every: int | None
    epochs: int
    keep_checkpoints: bool
    say: Callable[[str], None]
    say_passes: bool = False
    best: dict[str, Any] | None = None
    _skip: int = 0

    def resume(self, position: Position, state: Mapping[str, Any]) -> None:
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
        checkpoint = self.keep(position)
        self.stop.in_steps = False
        if self.stop.asked is not None:
            raise KeyboardInterrupt
        self._evaluate_if_due(position, checkpoint)

    def keep(self, position: Position) -> Path | None:
        """Write a checkpoint, if this training keeps them; its curve is on disk before it."""
        if not self.keep_checkpoints:
            return None
        self.recorder.writer.flush()
        state = {"evaluated": self._next_is_no_evaluation(position), "best": self.best}
        return save_checkpoint(self.recorder.run, self.parts, position, state)

    def _next_is_no_evaluation(self, position: Position) -> bool:
        return position.batches > 0 or not self._due(position)

    def _due(self, position: Position) -> bool:
        if self.held_out is None or self.eval_every is None:
            return False
        return position.epochs % self.eval_every == 0 or position.epochs >= self.epochs

    def _evaluate_if_due(self, position: Position, checkpoint: Path | None) -> None:
        if self.held_out is None or not self._due(position):
            return
        average = self.parts.average
        with average.in_place() if average is not None else nullcontext():
            rows = self.held_out.evaluate(self.parts.model, position.epochs, position.steps)
            self._judge(rows, position)
        self.recorder.writer.append("accuracy", rows)
        self.recorder.writer.flush()
        if checkpoint is not None:
            update_state(checkpoint, evaluated=True, best=self.best)
        self.say(f"epoch {position.epochs}: {_told(rows)}")

    def _judge(self, rows: Sequence[tuple[Any, ...]], position: Position) -> None:
        """Keep these weights if no earlier ones were better."""
        overall = {row[2]: row[5] for row in rows if row[3] == "AP" and row[4] is None}
        kind = next(kind for kind in JUDGED_BY if kind in overall)
        value = overall[kind]
        if value is None or (self.best is not None and value <= self.best["value"]):
            return
        self.best = {
            "kind": kind,
            "figure": "AP",
            "value": value,
            "epoch": position.epochs,
            "step": position.steps,
        }
        if self.keep_checkpoints:
            save_best(self.recorder.run, self.parts.model, self.best)


def _told(rows: Sequence[tuple[Any, ...]]) -> str:
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
