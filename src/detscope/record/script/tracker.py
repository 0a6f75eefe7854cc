"""Where everything a script does arrives: keeps the time, finds the borders, tells the recorder.

Hooks call it from the thread that trains. Other threads run as always and are said to be not attributed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import get_ident
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch import nn

from detscope.record.device.clock import DeviceMark
from detscope.record.foreign import WeakObjects, frames_above, raised_by_handler
from detscope.record.model.borders import CallState
from detscope.record.model.calls import CallListener
from detscope.record.model.last_gradient import hear_last_gradient
from detscope.record.script.endings import ScriptStopped
from detscope.record.script.loading import StepBatches
from detscope.record.script.losses import LossKeeper
from detscope.record.script.options import ScriptOptions
from detscope.record.script.other import OtherSampler
from detscope.record.script.pacing import StepEnd, StepPacer
from detscope.record.script.recorder import FinishedStep
from detscope.record.script.recording import ScriptRecording
from detscope.record.script.roots import RootModel, RootModels, find_precision, is_training
from detscope.record.steps.events import TIME, WIDTH, EventBuffer
from detscope.record.steps.nodes import PHASES
from detscope.runs.writer import OWN_FAILURES

Call = Callable[..., Any]


class StepSplit(NamedTuple):
    """Where a step may turn out to have ended: place among events, the host's time, the device's marks."""

    offset: int
    time_ns: int
    ends: DeviceMark | None
    begins: DeviceMark | None


TRANSFER, FORWARD, BACKWARD, OPTIMIZER = (PHASES.index(name) for name in PHASES[1:5])
_MOST_REFUSALS = 100  # times that a script may catch the request to stop


def _call_plainly(plain: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return plain(module, *args, **kwargs)


class ScriptTracker(CallState):
    """State of one script while it runs."""

    def __init__(self, options: ScriptOptions) -> None:
        super().__init__(active=True)
        self.pacer = StepPacer()
        self.roots = RootModels()
        self.losses = LossKeeper()
        self.batches = StepBatches(self)
        self.recording = ScriptRecording(
            options,
            self.roots,
            lambda: CallListener(self, self.call_root, self.module_call),
            OtherSampler(self._thread_outside_phases),
        )
        self.writing = True  # phases are written; not in bare steps
        self.in_optimizer = 0
        self.module_call: Callable[..., Any] | None = None  # what hooks put into nn.Module
        self.buffer = EventBuffer()
        self._optimizers: WeakObjects[Any] = WeakObjects(when_gone=self.pacer.forget_optimizer)
        self.inner_steps = 0  # times that an optimizer said it had stepped
        self._optimizer_frame: Any = None
        self._stepping: list[AbstractContextManager[None]] = []  # parts of optimizers that are stepping
        self._split: StepSplit | None = None  # where a model was called after an optimizer step
        # where models were first called, until a step has ended; None: by something that is no module
        self._beginnings: dict[RootModel | None, tuple[int, int]] | None = {}
        self._called: set[RootModel] = set()
        self._models_called = False  # by the thread that is recorded
        self.forward_calls = 0  # of models with weights, that have begun
        self._last_ns = 0  # when something ended last
        self.crossing = False  # our own work is under way
        self._start_ns = perf_counter_ns()
        self._refused = 0
        os.register_at_fork(after_in_child=self._stop_listening)

    def _stop_listening(self) -> None:
        self.active = self.writing = False

    # ---- who speaks

    def listens_here(self) -> bool:
        """Whether this thread is the one that is recorded."""
        if self.active and self.owner is None:
            self.owner = get_ident()
        return self.active and get_ident() == self.owner

    def _adopts_thread(self) -> bool:
        """The thread that goes backward is the one that trains, if no other has done so."""
        if self.active and not self.inside and not self.pacer.trained and get_ident() != self.owner:
            if self.owner is not None:
                self.recording.note("the thread that trains is recorded, another had called a model before")
            self.owner = get_ident()
        return self.listens_here()

    def _thread_outside_phases(self) -> int | None:
        """The thread to look at while no phase runs in a step that is recorded; asked by another thread."""
        parts = self.recording.parts
        quiet = self.inside or self.in_optimizer or self.crossing or (parts is not None and parts.is_open)
        return None if quiet or not (self.active and self.writing) else self.owner

    def find_phase(self) -> str | None:
        """The phase under way in this thread, if it is one that is recorded."""
        if not self.active or self.crossing:
            return None
        if self.in_backward:
            return "backward"
        if get_ident() != self.owner and self.owner is not None:
            return None
        if self.in_optimizer:
            return "optimizer"
        return "forward" if self.inside else "other"

    # ---- models

    def call_root(
        self, plain: Call, recorded: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A module is called by no other module; `recorded` notes what happens inside, if anybody does."""
        if not self._models_called and self.active and get_ident() != self.owner:
            self.owner = get_ident()  # whoever was heard before has only fetched batches
        if not self.listens_here():
            self.recording.note(
                "models were called in more than one thread: one thread is recorded, calls in the others are"
                " not attributed"
            )
            return plain(module, *args, **kwargs)
        ways: list[Call | RootModel] = []
        self.look_safely(lambda: ways.append(self._enter_root(module, args, kwargs)))
        way = ways[0] if ways else plain
        if not isinstance(way, RootModel):
            return way(module, *args, **kwargs) if way is plain else way(plain, module, args, kwargs)
        gradients = torch.is_grad_enabled()
        output = self._call_forward(recorded, way, module, args, kwargs, gradients and is_training(module))
        if gradients:
            self.look_safely(
                lambda: self.losses.add_returned(way.label, way.has_weights, output), losses=True
            )
        return output

    def _enter_root(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call | RootModel:
        """A module is about to be called: its root, or how it is called where that is no part of forward."""
        if self.roots.is_tried_out(module):
            return self._call_unrecorded
        self._models_called = True
        root = self.roots.find_root(module)
        if not root.is_model_work((args, kwargs)):
            return partial(self.batches.transform_batch, root) if root.may_transform else _call_plainly
        gradients = torch.is_grad_enabled()
        if self._inside_optimizer():
            self.pacer.count_root(root.number, gradients, is_training(module))
        else:
            self._mark_split()
            self.cross_border(self.pacer.enter_root(root.number, gradients, is_training(module)))
            if self.active:
                self.crossing = True
                self.recording.prepare_root(root, gradients)
                self.crossing = False
                self.writing = self.active and self.recording.is_writing
            self._mark_beginning(root)
        self._called.add(root)
        if root.has_weights:
            self.batches.add_arguments(args, kwargs)
            self.recording.watch_arguments((args, kwargs))
        if self.recording.precision is None:
            self.recording.precision = find_precision(module)
        return root

    def _call_unrecorded(
        self, plain: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module that belongs to no step, and all that it calls."""
        self.inside += 1
        try:
            return plain(module, *args, **kwargs)
        finally:
            self.inside -= 1

    def look_safely(self, look: Callable[[], object], losses: bool = False) -> None:
        """At something of the script's; whatever that raises is no matter of the script."""
        try:
            with (
                torch._C.DisableTorchFunction()
            ):  # a tensor class or a mode of the script's may note what is done
                look()
        except OWN_FAILURES as error:
            if losses and not raised_by_handler(error):
                self.recording.note(f"cannot tell all losses: {type(error).__name__}: {error}"[:200])
                return
            self.fail_with(error)
            if self.recording.interrupted:
                raise

    def _mark_beginning(self, root: RootModel | None) -> None:
        """The first step begins where its work does: until then the script has imported, read and built."""
        if self._beginnings is not None and root not in self._beginnings:
            self._beginnings[root] = (len(self.buffer.items), perf_counter_ns())

    def _leave_out_start(self, trains: bool) -> None:
        """Of the first step, what came before its work; without a loader nobody says when that begins."""
        marks, self._beginnings = self._beginnings, None
        if not marks or self.batches.from_loaders:
            return
        model = self.roots.choose_model(trains)
        begun = [
            mark
            for root, mark in marks.items()
            if root is None
            or model is None
            or root in model.parts
            or not root.lies_inside(model)  # as constructors call their parts
        ]
        if begun:
            offset, self._start_ns = min(begun)
            self.buffer.take_events(0, offset)

    def _mark_split(self) -> None:
        """Work begins after an optimizer has stepped: it may turn out to be the next step's."""
        if self.pacer.stepped and self._split is None:
            marker = self.buffer.marker if self.writing else None
            marks = (None, None) if marker is None else (marker.record(), marker.record())
            self._split = StepSplit(len(self.buffer.items), perf_counter_ns(), *marks)

    def _call_forward(
        self, plain: Call, root: RootModel, module: nn.Module, args: Any, kwargs: dict[str, Any], trains: bool
    ) -> Any:
        recording, writing = self.recording, self.writing
        self.forward_calls += root.has_weights
        pair = recording.find_pair(root) if writing else None
        self.inside += 1
        start_ns = perf_counter_ns()
        output = None
        if writing:
            self.buffer.enter_node(FORWARD)
        if pair:
            pair[0](module, args)
        try:
            output = plain(module, *args, **kwargs)
            return output
        except BaseException:
            self.pacer.forget_root(root.number, torch.is_grad_enabled(), is_training(module))
            raise
        finally:
            if pair:
                pair[1](module, args, output)
            if writing:
                ended_ns = self.buffer.exit_node(FORWARD)
                if root.has_weights and recording.parts is not None and torch.is_grad_enabled():
                    recording.parts.end_forward(ended_ns)
            self.inside -= 1
            self._last_ns = perf_counter_ns()
            root.add_call(self._last_ns - start_ns, trains)

    # ---- backward

    def run_backward(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The autograd engine is entered."""
        if not (self.inside and self.listens_here()) and not self._adopts_thread():
            return plain(*args, **kwargs)
        if not self.inside:
            in_optimizer = self._inside_optimizer()
            self._mark_split()
            self.cross_border(self.pacer.go_backward(in_optimizer))
            self._mark_beginning(None)
            if kwargs.get("accumulate_grad"):
                self.look_safely(lambda: self.losses.add_backward(args[0], in_optimizer), losses=True)
        writing, parts = self.writing, self.recording.parts
        heard: list[Any] = []
        if writing:
            if not self.inside and parts is not None:
                begin = parts.begin_backward
                self.look_safely(lambda: self.recording.take_loss(begin(args[0])))
            self.buffer.enter_node(BACKWARD)
            if not self.in_backward:
                self.look_safely(lambda: heard.append(hear_last_gradient(self.buffer, *args[:1])))
            if not self.inside and parts is not None:
                hear = parts.hear_first_node
                self.look_safely(lambda: heard.append(hear(args[0])))
        self.inside += 1
        self.in_backward += 1
        try:
            return plain(*args, **kwargs)
        finally:
            for handle in heard:
                if handle is not None:
                    handle.remove()
            if writing:
                self.buffer.exit_node(BACKWARD)
            self.in_backward -= 1
            self.inside -= 1

    # ---- optimizers

    def add_optimizer(self, optimizer: Any) -> None:
        """An optimizer is there, until it is gone."""
        self.pacer.add_optimizer()
        self._optimizers.add(optimizer)

    def _inside_optimizer(self) -> bool:
        """Whether an optimizer is stepping; one that raised never says that it ended."""
        began_in = self._optimizer_frame if self.in_optimizer else None
        if began_in is not None and all(frame is not began_in for frame in frames_above(sys._getframe(1))):
            self.recording.note("an optimizer step raised an error that the script caught")
            while self.in_optimizer:
                self._exit_optimizer()
        return self.in_optimizer > 0

    def enter_optimizer(self, optimizer: Any, frame: Any, part: tuple[str, str] | None = None) -> bool:
        """An optimizer is about to step, or a scaler to let it; whether that is recorded."""
        if self.in_backward and self.listens_here():
            self.pacer.steps_in_backward = True
        if self.inside or not self.listens_here():
            return False
        if not self._inside_optimizer():
            self.cross_border(self.pacer.enter_optimizer(id(optimizer)))
            self._optimizer_frame = frame
        self.in_optimizer += 1
        if self.writing:
            self.buffer.enter_node(OPTIMIZER)
        self._stepping.append(self._hear_part(part or ("step", f"{type(optimizer).__name__}.step()")))
        return True

    def _hear_part(self, part: tuple[str, str]) -> AbstractContextManager[None]:
        """A part of the optimizer's phase begins; nothing while there is no run."""
        parts = self.recording.parts
        return nullcontext() if parts is None or not self.writing else parts.hear_part(*part)

    def _exit_optimizer(self) -> None:
        if self._stepping:
            self._stepping.pop().__exit__(None, None, None)
        if self.writing:
            self.buffer.exit_node(OPTIMIZER)
        self.in_optimizer -= 1
        self._last_ns = perf_counter_ns()
        if not self.in_optimizer:
            self._optimizer_frame = None

    def exit_optimizer(self, optimizer: Any, skipped: bool = False) -> None:
        """An optimizer has stepped, or a scaler has decided that it should not."""
        if self.inside or not self.in_optimizer or not self.listens_here():
            return
        self._exit_optimizer()
        self.inner_steps += not skipped
        if not self.in_optimizer:
            self.look_safely(lambda: self.recording.add_optimizer_step(optimizer, skipped))
            self.look_safely(lambda: self.losses.end_optimizer_step(optimizer), losses=True)
            self.cross_border(self.pacer.end_optimizer_step(id(optimizer)))
            self._split = None

    def begin_phase(self, phase: int, part: tuple[str, str] | None = None) -> Callable[[], None]:
        """Data go to a device, or gradients are cleared or clipped; call what is given back when it ends."""
        under_way = self.inside or (phase == TRANSFER and self.in_optimizer)
        if under_way or not self.writing or not self.listens_here():
            return lambda: None
        self.buffer.enter_node(phase)
        heard = None if part is None else self._hear_part(part)
        self.inside += 1

        def end_phase() -> None:
            if heard is not None:
                heard.__exit__(None, None, None)
            self.buffer.exit_node(phase)
            self.inside -= 1

        return end_phase

    # ---- borders

    def cross_border(self, ended: StepEnd) -> None:
        """Something has ended, or nothing; may raise the request to stop."""
        if ended is StepEnd.NOTHING:
            return
        try:
            with torch._C.DisableTorchFunction():
                stop = self._cross_to_next(ended, perf_counter_ns())
        except OWN_FAILURES as error:  # our failure must not become the script's
            self.fail_with(error)
            if self.recording.interrupted:
                raise
            return
        goes_on = ended is not StepEnd.DROPPED and (ended is not StepEnd.EVALUATION or not self.pacer.trained)
        if stop and (goes_on or not self._refused):  # an evaluation in a `finally` block may end
            self._refused += 1
            if self._refused > _MOST_REFUSALS:
                self.recording.note("the script caught every request to stop: it runs on, unrecorded")
                self.active = False
                return
            raise ScriptStopped

    def _pass_bare(self, ended: StepEnd, now_ns: int) -> bool:
        """Between two bare predictions nothing is done but to count; whether this is such a border."""
        known, plain = self._beginnings is None, ended is StepEnd.EVALUATION and self._split is None
        if not plain or not known or self.buffer.items or self.pacer.last_iterations > 1:
            return False
        contents = self.batches.arguments if self.batches.without_loader else []
        if not contents or not self.recording.pass_bare_step(self._start_ns, now_ns, contents):
            return False
        for root in self._called:
            root.calls_in_evaluation_steps += 1
        self._called.clear()
        self.losses.take_losses(False)
        self.batches.clear_step(ended)
        self._start_ns = perf_counter_ns()
        return True

    def _cross_to_next(self, ended: StepEnd, now_ns: int) -> bool:
        """Close what ended, open what comes; whether the script is to stop."""
        if self._pass_bare(ended, now_ns):
            return False
        self.crossing = True
        buffer, kept, done = self.buffer, None, None
        split = self._split if ended is StepEnd.EARLIER else None
        if split is not None:
            now_ns, kept = split.time_ns, buffer.take_events(split.offset)
        trains = ended in (StepEnd.TRAINING, StepEnd.EARLIER)
        losses = self.losses.take_losses(ended is StepEnd.EARLIER)
        if ended is StepEnd.DROPPED:
            self._beginnings = self._beginnings and {}
        else:
            if self._beginnings is not None:
                self._leave_out_start(trains)
            batches, iterations = self.batches, self.pacer.last_iterations
            loaded = batches.take_contents(iterations)
            contents = loaded or batches.arguments
            done = FinishedStep(
                self._start_ns,
                now_ns,
                batches.fresh_pass,
                min(iterations, len(contents) or iterations),  # a batch may go backward more than once
                contents,
                [(timing, waited_ns) for timing, waited_ns in batches.timings if waited_ns >= 0],
                losses,
                batches.num_workers if loaded else None,
                batches.transformed,
                split and split.ends,
            )
            for root in self._called:
                root.calls_in_training_steps += trains
                root.calls_in_evaluation_steps += not trains
        stop = self.recording.end_step(done, trains, self.batches.loader, buffer)
        self.batches.clear_step(ended)
        self._called, self._split = set(), None
        self.buffer = self.recording.begin_step(buffer)
        self.writing = self.recording.is_writing
        if split is not None and kept is not None:
            self.recording.backdate_step(self.buffer, kept, split.begins)
        self._start_ns = now_ns if kept and kept.items else perf_counter_ns()
        self.crossing = False
        return stop

    def fail_with(self, error: BaseException) -> None:
        """The recording is over, the script goes on."""
        self._stop_listening()
        self.recording.fail_with(error)

    def close_run(self, error: BaseException | None) -> Any:
        """The script has ended; the run folder, or None where nothing was recorded."""
        if self.active and not isinstance(error, ScriptStopped):
            open_phase = self.inside or self.in_optimizer
            ended = StepEnd.NOTHING if open_phase else self.pacer.end_script()
            end_ns = max([self._last_ns, *self.buffer.items[TIME::WIDTH][-1:]])  # a bare step writes nothing
            if ended in (StepEnd.TRAINING, StepEnd.EVALUATION) and end_ns > self._start_ns:
                try:
                    self._cross_to_next(ended, end_ns)
                except OWN_FAILURES as failure:
                    self.fail_with(failure)
        self._stop_listening()
        return self.recording.close_run(error, self.pacer)
