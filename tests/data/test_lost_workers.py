"""A loader worker that dies while its batch is being fetched: what comes out is told as a lost worker."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from detscope.errors import MachineError
from detscope.faults import classify_fault, find_lost_workers
from detscope.sweep.outcome import classify_exception

ATTEMPTS = 8  # whether the connection or the process is seen to end first is chance


class Images(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(3, 64, 64)


@pytest.fixture
def unheard_deaths() -> Iterator[None]:
    """Without torch's handler of signals, which raises in whatever runs when it hears of a death."""
    next(iter(DataLoader(Images(), num_workers=1)))  # sets it, once in a process
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    yield
    gc.collect()  # iterators of dead workers, which their errors hold: torch's handler raises for each
    signal.signal(signal.SIGCHLD, before)


def fetch_from_dying_worker() -> tuple[BaseException, int]:
    """The worker stands still while the loop waits for what it made, and is then killed."""
    batches = iter(DataLoader(Images(), num_workers=1))
    next(batches)
    worker = psutil.Process(batches._workers[0].pid)
    while batches._worker_result_queue.empty():
        time.sleep(0.01)
    worker.suspend()
    killing = threading.Timer(0.3, os.kill, (worker.pid, signal.SIGKILL))
    killing.start()
    error: BaseException | None = None
    try:
        for _ in batches:
            pass
    except (RuntimeError, OSError, EOFError) as caught:
        error = caught
    killing.join()
    assert error is not None
    return error, worker.pid


@pytest.mark.processes
@pytest.mark.usefixtures("unheard_deaths")
def test_a_worker_that_dies_while_its_batch_is_fetched_is_named() -> None:
    for _ in range(ATTEMPTS):
        error, worker = fetch_from_dying_worker()
        fault, outcome = classify_fault(error), classify_exception(error)
        assert isinstance(fault, MachineError), repr(error)
        assert f"loader worker {worker} " in fault.message
        assert outcome.luck and str(worker) in outcome.detail


def test_other_broken_connections_are_no_lost_workers() -> None:
    try:
        raise ConnectionResetError(104, "Connection reset by peer")
    except ConnectionResetError as error:
        assert find_lost_workers(error) == ""
    assert find_lost_workers(ValueError("x")) == ""
