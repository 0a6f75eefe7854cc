"""Backward in another thread, as torch does it for devices: the thread that calls waits.

torch's engine has a thread per device, to which it hands modes and gradient mode of the caller
(torch/include/torch/csrc/autograd/engine.h, ATen/ThreadLocalState.h); autocast and sequence numbers are each
thread's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import torch

from simulated.device import Machine
from simulated.operators import DeviceMode
from simulated.tensors import find_device
from simulated.truth import Labels


class DeviceThread:
    """Does what it is given while others wait; a program that ends does not wait for it."""

    def __init__(self) -> None:
        self._given: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[[], Any]) -> Any:
        """Do it there; raises what it raises."""
        if self._thread is None or not self._thread.is_alive():  # a forked child has none
            self._thread = threading.Thread(target=self._run_thread, daemon=True)
            self._thread.start()
        done: Future[Any] = Future()
        self._given.put((work, done))
        return done.result()

    def _run_thread(self) -> None:
        while (given := self._given.get()) is not None:
            work, done = given
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)
            del given, work, done  # what they hold is the program's

    def end(self) -> None:
        if self._thread is not None:
            self._given.put(None)
            self._thread.join()


class DeviceEngine:
    """In the place of `Variable._execution_engine`."""

    def __init__(self, plain: Any, machine: Machine, labels: Labels, mode: DeviceMode) -> None:
        self._plain, self._machine, self._labels, self._mode = plain, machine, labels, mode
        self.worker = DeviceThread()
        self._thread: int | None = None
        self.threads: set[int] = set()  # in which it ran

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def run_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """As the plain engine's; what lives on the host runs where it is called."""
        outputs = [one for one in tensors if isinstance(one, torch.Tensor)]
        if all(find_device(one) is None for one in outputs):
            return self._plain.run_backward(tensors, *args, **kwargs)
        caller = self._machine.thread
        if threading.get_ident() == self._thread:  # backward inside of backward, as checkpoints do
            with self._labels.inside_engine(caller):
                return self._plain.run_backward(tensors, *args, **kwargs)
        device, streams = self._machine.here.device, dict(self._machine.here.streams)
        grad_mode = torch.is_grad_enabled()

        def run() -> Any:
            self._thread = threading.get_ident()
            self.threads.add(self._thread)
            self._machine.here.device, self._machine.here.streams = device, streams
            try:
                with torch.set_grad_enabled(grad_mode), self._mode, self._labels.inside_engine(caller):
                    return self._plain.run_backward(tensors, *args, **kwargs)
            finally:
                self._mode.close_node()
                self._thread = None

        with self._labels.phase("backward"):
            return self.worker.run(run)
