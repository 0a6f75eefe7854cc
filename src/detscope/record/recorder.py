"""The recorder: attach it to a model in anybody's loop, and a run folder comes out.

with detscope.Recorder(model, optimizer=optimizer, out="runs") as recorder:
    for images, targets in recorder.steps(loader):
        ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from time import perf_counter_ns
from typing import Any

from detscope.record.content import describe_batch
from detscope.record.loader import instrument_iterator, unwrap_batch
from detscope.record.model.borders import attributes_of
from detscope.record.step_recorder import StepRecorder
from detscope.record.steps.events import BATCH_ARRIVED, STEP_BEGINS


class Recorder(StepRecorder):
    """Listens to a training (or inference) loop and writes a run."""

    def continue_from(self, step: int, epoch: int) -> None:
        """Number steps and passes on from those of an earlier run; what is recorded how does not change."""
        self.first_step, self.epoch = step, epoch - 1

    def steps(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The batches of one pass; each is one step, from asking for it to asking for the next."""
        self.epoch += 1
        pause_start_ns = perf_counter_ns()
        iterator: Iterator[Any] | None = None
        first, dropped = True, False
        try:
            while True:
                mode = self.prepare_step()
                start_ns = perf_counter_ns()
                asked = self.mark_device()
                self.buffer.mark_processor(STEP_BEGINS)
                pause_ns = start_ns - pause_start_ns
                if iterator is None:  # starting workers is part of waiting for the first batch
                    self.writer.info["num_workers"] = attributes_of(loader, type(loader)).get("num_workers")
                    iterator = instrument_iterator(loader)
                    self.loaders.append(loader)
                self.fetching = True
                try:
                    item = next(iterator)
                except StopIteration:
                    self.fetching = False
                    return
                self.fetching = False
                waited_ns = perf_counter_ns()
                marks = (asked, self.mark_device())
                self.buffer.mark_processor(BATCH_ARRIVED)
                batch, timing = unwrap_batch(item)
                self.watch_inputs(batch, timing)
                content = describe_batch(batch)
                step = self.begin_step(mode, start_ns, waited_ns, pause_ns, marks)
                step.first_of_epoch, step.timing, step.content = first, timing, content
                yield batch
                pause_start_ns = self.finish_step()
                first = False
        except GeneratorExit:
            dropped = True
            raise
        finally:
            with suppress(*[Exception] if dropped else []):  # torch's handler of dead workers may raise here
                self.abandon_step(complete_if_possible=True)
