"""How a trial ended: one vocabulary for the process, the store and every view."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from detscope.faults import error_text, find_lost_workers, find_user_frame
from detscope.machine.limits import explain_exhausted_memory

# crashed (SIGSEGV), exited (3), error (ValueError: ...), skipped (out of memory at batch 8)
KINDS = ("ok", "oom_host", "oom_device", "timeout", "crashed", "exited", "error", "skipped")
OUT_OF_MEMORY = ("oom_host", "oom_device")
LOST, NO_NODE = "lost", "no node"  # how the details of trials begin that no machine has run to their end
_WORKER_SIGNS = ("DataLoader worker (pid", "DataLoader worker exited unexpectedly")
_DETAIL_LENGTH = 200
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_FRAMES = 16


WIDEST_INTERVAL = 0.5  # over the median: beyond it a latency says more about the machine's other work


def explain_unusable_latency(low: float | None, middle: float, high: float | None) -> str | None:
    """Why a measured latency cannot be learnt from; None where it can."""
    if low is None or high is None:
        return "too few steps to know its latency (measure.max_seconds)"
    if (high - low) / middle > WIDEST_INTERVAL:
        return f"the interval of its latency is wider than {100 * WIDEST_INTERVAL:.0f} % (a busy machine?)"
    return None


@dataclass(frozen=True)
class Outcome:
    """What became of one attempt."""

    kind: str
    detail: str = ""  # the signal, the exit code, the exception, the reason for skipping
    message: str = ""  # last words, for a person
    result: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    luck: bool = False  # another attempt may well end differently
    environment: Mapping[str, Any] | None = None  # where somebody else's machine ran it

    @property
    def status_text(self) -> str:
        """`ok`, `crashed (SIGKILL)`, ..."""
        return f"{self.kind} ({self.detail})" if self.detail else self.kind

    @property
    def latency_why(self) -> str | None:
        """Why the measured latency cannot be used; None where it can, or was not measured."""
        middle = self.result.get("step_ms")
        if self.kind != "ok" or not middle:
            return None
        why = explain_unusable_latency(
            self.result.get("step_low_ms"), float(middle), self.result.get("step_high_ms")
        )
        return None if why is None else f"of no use for latency: {why}"


def is_open(status: str) -> bool:
    """Whether an ending says nothing of the trial: its machine was lost. Resuming runs it again."""
    return status.startswith((f"error ({LOST} its node", f"error ({LOST}: no answer", f"error ({NO_NODE} "))


def is_failure(kind: str) -> bool:
    """Neither measured nor left out on purpose."""
    return kind not in ("ok", "skipped")


def explain_skip(kind: str, status: str, batch_size: int) -> str:
    """Why larger batches are left out after this one failed."""
    what = "out of memory" if kind in OUT_OF_MEMORY else status
    return f"{what} at batch {batch_size}"


def classify_exit(return_code: int, last_words: str, memory_killer: bool) -> Outcome:
    """A process that ended by itself, or by somebody else, before it gave a result."""
    if return_code >= 0:
        return Outcome("exited", str(return_code), last_words)
    try:
        name = signal.Signals(-return_code).name
    except ValueError:
        name = f"signal {-return_code}"
    if name == "SIGKILL" and memory_killer:
        return Outcome("oom_host", "", "the kernel's out-of-memory killer ended the process")
    # a segmentation fault comes again; SIGKILL and SIGTERM come from outside
    return Outcome("crashed", name, last_words, luck=name in ("SIGKILL", "SIGTERM"))


def classify_exception(error: BaseException) -> Outcome:
    """An exception that came out of a trial; looks at what caused it too, for what ran out."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    words = shorten_text(f"{type(error).__name__}: {error_text(error)}")
    frame = find_user_frame(error)
    if frame is not None:
        words = f"{frame}: {words}"
    for link in chain:
        exhausted = explain_exhausted_memory(link)
        if exhausted is not None:
            return Outcome(f"oom_{exhausted[0]}", "", shorten_text(exhausted[1]))
    for link in chain:
        said = error_text(link)
        if gone := find_lost_workers(link):
            said = f"DataLoader worker (pid(s) {gone}) ended while a batch of its was fetched: {said}"
        elif not isinstance(link, RuntimeError) or not any(sign in said for sign in _WORKER_SIGNS):
            continue
        return Outcome("error", shorten_text(f"lost a loader worker: {said}"), words, luck=True)
    return Outcome("error", words[:_DETAIL_LENGTH], words)


def find_innermost_calls(dump: str) -> str:
    """The innermost calls of the main thread in a dump of all stacks, innermost first."""
    stacks = re.split(r"^(?:Current thread|Thread) .*$", dump, flags=re.MULTILINE)
    frames = _FRAME.findall(stacks[-1]) if len(stacks) > 1 else []  # the main thread comes last
    return ", ".join(f"{path.rpartition('/')[2]}:{line} {name}" for path, line, name in frames[:_FRAMES])


def shorten_text(text: str, length: int = 500) -> str:
    """Text without line breaks or characters that steer a terminal, shortened."""
    words = " ".join(text.split())
    return "".join(char for char in words if char.isprintable())[:length]
