"""Whose fault an exception is: the user's code, a lost worker, the machine; what nobody else did is ours.

`internal error` is said of our own bugs alone, so every door through which others' faults come asks here.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sysconfig
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from detscope.errors import DetscopeError, MachineError, OwnCodeError, ProcessEnded, UsageError
from detscope.extras import missing_extra

_OURS = str(Path(__file__).parent) + os.sep
_LIBRARY = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_LONGEST = 300
_IN_WORKER = re.compile(r"^Caught (\w+) in DataLoader worker process (\d+)\.")
_FRAME = re.compile(r'^  File "(.+?)", line (\d+), in ', re.MULTILINE)
_KILLED = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: (.+?)\.(?:\s|$)")
_EXITED = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) exited unexpectedly(?: with exit code (\d+))?"
)
_LOADER_FILE = str(Path("torch", "utils", "data", "dataloader.py"))
_SENDING = str(Path(sysconfig.get_path("stdlib"), "multiprocessing")) + os.sep
_LONGEST_DEATH_S = 5.0  # from the end of a process's connections to the end of the process
_NO_SHARED_MEMORY = (
    "insufficient shared memory",
    "unable to open shared memory object",
    "unable to allocate shared memory",
    "unable to resize file </torch_",
    "unable to mmap",
)
_HOST_MEMORY = (
    "can't allocate memory",
    "Cannot allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "MemoryError",
)
# the allocator's own words, the driver's, and those of CUDA's libraries for their workspaces
_DEVICE_MEMORY = re.compile(
    r"(?:CUDA|HIP|XPU|MPS backend)(?: error:)? out of memory"
    r"|(?:cuda|hip)Error(?:MemoryAllocation|OutOfMemory)"
    r"|(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|HIPBLAS|MIOPEN)_(?:STATUS_)?ALLOC_FAILED"
)
_LOADER_HINT = (
    "--set training.num_workers=0 loads without workers; they may need more memory, or a larger /dev/shm"
)


@dataclass(frozen=True)
class CodeFrame:
    """A line of code that was running."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def is_ours(self) -> bool:
        """Whether the line is detscope's."""
        return self.file.startswith(_OURS)

    @property
    def is_users(self) -> bool:
        """Whether it is neither ours, nor Python's, nor of an installed package, nor made at run time."""
        installed = any(mark in self.file for mark in _INSTALLED)
        generated = self.file.startswith("<") or not self.file.endswith((".py", ".ipynb"))
        return not (self.is_ours or installed or generated or self.file.startswith(_LIBRARY))


def list_frames(error: BaseException) -> list[CodeFrame]:
    """Where it was raised, outermost first; of an exception in a loader worker, what its text tells."""
    if _IN_WORKER.match(error_text(error)):
        return [CodeFrame(file, int(line)) for file, line in _FRAME.findall(error_text(error))]
    return [CodeFrame(one.filename, one.lineno or 0) for one in traceback.extract_tb(error.__traceback__)]


def find_user_frame(error: BaseException) -> CodeFrame | None:
    """The innermost line of the user's code, if it is theirs: what our own lines raised is ours.

    A recursion without end is raised wherever the last call happened to be.
    """
    frames = list_frames(error)
    if not frames or (frames[-1].is_ours and not isinstance(error, RecursionError)):
        return None
    return next((frame for frame in reversed(frames) if frame.is_users), None)


def classify_fault(error: BaseException) -> DetscopeError | None:
    """The error in our words, with its class and exit code; None where it is a bug of ours."""
    if isinstance(error, DetscopeError):
        return _from_worker(error) or error
    if isinstance(error, SystemExit):
        return _ended_by_user(error)
    lost = _lost_worker(error)
    if lost is not None:
        return lost
    if find_exhausted_memory(error) is not None:
        return MachineError(
            f"out of memory: {one_line(error_text(error))}",
            "use a smaller batch or smaller images, or free memory",
        )
    if isinstance(error, RuntimeError) and error_text(error) == "can't start new thread":
        return MachineError(
            "no further thread can be started", "use fewer --threads or workers; see ulimit -u"
        )
    if isinstance(error, RuntimeError) and "to type float without overflow" in error_text(error):
        return UsageError(
            "a number is beyond what the model's numbers can hold", "look at training.learning_rate and such"
        )
    frame = find_user_frame(error)
    if frame is not None:
        return OwnCodeError(f"{frame}: {describe_error(error)}", "correct the code there")
    missing = missing_extra(error)
    if missing is not None:
        return missing
    if isinstance(error, ValueError) and "embedded null " in error_text(error):  # byte, or character
        return UsageError("a name holds a NUL character, which no file has", "look at paths and settings")
    if isinstance(error, ValueError) and error_text(error).endswith("has an empty name"):  # pathlib's words
        return UsageError("the name of a file is empty, or that of a folder", "give a file's name")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        where = "" if error.filename is None else f" {error.filename}"
        return MachineError(
            f"cannot write{where}: {error.strerror}", "free some space, or choose another disk"
        )
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        name = error.filename if isinstance(error.filename, str) else os.fsdecode(error.filename)
        return MachineError(
            f"cannot use {name}: {error.strerror}", "look at the path, its disk and its rights"
        )
    return None


def describe_error(error: BaseException) -> str:
    """`ValueError: its text`, on one line; of an exception in a worker without the traceback in its text."""
    text = error_text(error)
    caught = _IN_WORKER.match(text)
    if caught:
        lines = text.strip().splitlines()
        return one_line(lines[-1]) if len(lines) > 1 else caught[1]
    words = one_line(text)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def error_text(error: BaseException) -> str:
    """What it says of itself; nothing where asking it raises, as a user's own exception may."""
    try:
        return str(error)
    except Exception:
        return ""


def one_line(text: object, length: int = _LONGEST) -> str:
    """Text on one line, without characters that would steer a terminal, shortened."""
    return escape_unprintable(" ".join(str(text).split()))[:length]


def escape_unprintable(text: str) -> str:
    """The same text with what would steer a terminal spelled out."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)


def _from_worker(error: DetscopeError) -> DetscopeError | None:
    """One of our errors that a loader worker raised: torch put the whole traceback into its text."""
    if not _IN_WORKER.match(error.message):
        return None
    said = describe_error(error).partition(": ")[2]
    again = DetscopeError.__new__(type(error))
    DetscopeError.__init__(again, said or type(error).__name__, error.hint)
    return again


def _ended_by_user(stop: SystemExit) -> ProcessEnded | None:
    frame = find_user_frame(stop)
    if frame is None:
        return None
    given = 0 if stop.code is None else stop.code
    return ProcessEnded(f"{frame} ended the process: sys.exit({given!r:.100})", given)


def _lost_worker(error: BaseException) -> MachineError | None:
    text = error_text(error)
    if isinstance(error, RuntimeError | OSError) and any(sign in text for sign in _NO_SHARED_MEMORY):
        return MachineError(f"no room in shared memory: {one_line(text)}", _LOADER_HINT)
    gone = find_lost_workers(error)
    if gone:
        return MachineError(
            f"loader worker {gone} ended while a batch of its was fetched", f"{_LOADER_HINT} (out of memory?)"
        )
    if not isinstance(error, RuntimeError):
        return None
    for link in _list_causes(error):  # torch says which signal first, and that a worker is gone on top of it
        killed = _KILLED.search(error_text(link))
        if killed:
            words = f"loader worker {killed[1]} was killed by {_signal_name(killed[2])}"
            return MachineError(words, f"{_LOADER_HINT} (out of memory?)")
    exited = _EXITED.search(text)
    if exited:
        code = f" with exit code {exited[2]}" if exited[2] else ""
        return MachineError(f"loader worker {exited[1]} ended unexpectedly{code}", _LOADER_HINT)
    return None


def find_lost_workers(error: BaseException) -> str:
    """Which loader workers were gone when a batch was fetched from them; nothing of any other error.

    torch names them itself, unless a worker's connection ends before its process has: then the broken
    connection is all it says.
    """
    if not isinstance(error, ConnectionError | EOFError | FileNotFoundError):
        return ""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames or not frames[-1].f_code.co_filename.startswith(_SENDING):
        return ""
    inside = [frame for frame in frames if frame.f_code.co_filename.endswith(_LOADER_FILE)]
    workers = getattr(inside[-1].f_locals.get("self"), "_workers", ()) if inside else ()
    if not workers:
        return ""
    from multiprocessing.connection import wait

    ends = [worker.sentinel for worker in workers]
    with suppress(RuntimeError):  # by which torch interrupts whatever runs when it hears of the death
        wait(ends, _LONGEST_DEATH_S)
    dead = wait(ends, 0)
    return ", ".join(str(worker.pid) for worker in workers if worker.sentinel in dead)


def _signal_name(described: str) -> str:
    """`SIGKILL` for what the C library calls `Killed`."""
    for number in signal.valid_signals():
        if signal.strsignal(number) == described:
            return signal.Signals(number).name
    return described


def _list_causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def find_exhausted_memory(error: BaseException) -> Literal["host", "device"] | None:
    """Which memory an error says ran out; None where it does not say so."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "host"
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported for this
        return "device"
    if not isinstance(error, RuntimeError | OSError):
        return None
    text = error_text(error)
    if _DEVICE_MEMORY.search(text):
        return "device"
    # a loader worker's error arrives as text inside another of the same kind
    return "host" if any(sign in text for sign in _HOST_MEMORY) else None
