"""What a process takes, and whose parent it is: from Linux's own files, elsewhere from psutil.

A thread that asks twice a second stops the loop for each file that it opens: so of each process two files are
read for all of its counts, and whoever has no children is not looked for among all of the machine's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import psutil

_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_AFTER_NAME = 3  # `proc(5)` numbers the fields of `stat` from 1; the name, the second, may have spaces in it
_USER, _SYSTEM, _THREADS = (number - _AFTER_NAME for number in (14, 15, 20))
_RESIDENT = 1  # of `statm`; that of `stat` may lack some hundred pages for each core of the machine


class ProcessCounts(NamedTuple):
    """Of one process, at one moment."""

    cpu_s: float  # of all its threads, since it began
    resident_bytes: int
    threads: int


def read_counts(process: psutil.Process) -> ProcessCounts:
    """What it takes; `psutil.NoSuchProcess` where it has ended."""
    try:
        text = _read_file(f"/proc/{process.pid}/stat")
        pages = int(_read_file(f"/proc/{process.pid}/statm").split()[_RESIDENT])
    except ProcessLookupError as error:
        raise psutil.NoSuchProcess(process.pid) from error
    except OSError:
        return _ask_counts(process)
    fields = text[text.rindex(b")") + 2 :].split()
    cpu_s = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS_PER_S
    return ProcessCounts(cpu_s, pages * _PAGE_BYTES, int(fields[_THREADS]))


def _ask_counts(process: psutil.Process) -> ProcessCounts:
    with process.oneshot():
        spent = process.cpu_times()
        return ProcessCounts(spent.user + spent.system, process.memory_info().rss, process.num_threads())


def list_descendants(process: psutil.Process) -> list[int]:
    """Its children and theirs."""
    found, asked = [], [process.pid]
    try:
        while asked:
            children = _list_children(asked.pop())
            asked += children
            found += children
    except OSError:  # not Linux, or one built without these files
        return [child.pid for child in process.children(recursive=True)]
    return found


def _list_children(pid: int) -> list[int]:
    """Of all its threads; of a process that has ended meanwhile none."""
    found: list[int] = []
    folder = Path(f"/proc/{pid}/task")
    try:
        threads = os.listdir(folder)  # noqa: PTH208 - names are enough
    except FileNotFoundError:
        if pid == os.getpid():
            raise
        return []
    for thread in threads:
        try:
            found += map(int, _read_file(f"{folder}/{thread}/children").split())
        except FileNotFoundError:
            if thread == str(pid) and folder.exists():  # the file is missing, not the thread
                raise
        except ProcessLookupError:
            continue
    return found


def _read_file(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 1 << 16)
    finally:
        os.close(file)
