"""What a process takes and whose parent it is: the same from Linux's own files as from psutil."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from detscope.machine import processes
from detscope.machine.processes import list_descendants, read_counts

PARENT = """
import subprocess, sys, threading

def start():
    global child
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE)

thread = threading.Thread(target=start)  # a child of a thread is one of the process
thread.start()
thread.join()
input()
"""
WORKS = "sum(range(20_000_000)); print(flush=True); input()"


def begin_process(code: str) -> subprocess.Popen[bytes]:
    """One that has written a line and waits for one."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", code], **pipes)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def end_process(process: subprocess.Popen[bytes]) -> None:
    """It and its children."""
    for child in psutil.Process(process.pid).children(recursive=True):
        child.kill()
    process.kill()
    process.communicate()


@pytest.fixture
def working() -> Iterator[subprocess.Popen[bytes]]:
    process = begin_process(WORKS)
    yield process
    end_process(process)


def test_counts_are_those_of_psutil(working: subprocess.Popen[bytes]) -> None:
    asked = psutil.Process(working.pid)
    counts, other = read_counts(asked), processes._ask_counts(asked)
    assert counts.cpu_s == pytest.approx(other.cpu_s, abs=0.05)
    assert counts.cpu_s > 0
    assert counts.resident_bytes == pytest.approx(other.resident_bytes, rel=0.05)
    assert counts.threads == other.threads == 1


def test_a_name_with_spaces_and_brackets_does_not_shift_the_counts(tmp_path: Path) -> None:
    odd = tmp_path / "a ) 1 (b"
    odd.symlink_to(Path("/bin/cat").resolve())
    process = subprocess.Popen([odd], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert Path(f"/proc/{process.pid}/comm").read_text().strip() == odd.name
        counts, asked = read_counts(psutil.Process(process.pid)), psutil.Process(process.pid)
        assert counts.threads == 1
        assert counts.resident_bytes == pytest.approx(asked.memory_info().rss, rel=0.05)
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_has_ended_is_said_to_be_none() -> None:
    process = begin_process(WORKS.replace("20_000_000", "1"))
    gone = psutil.Process(process.pid)
    process.kill()
    process.communicate()
    with pytest.raises(psutil.NoSuchProcess):
        read_counts(gone)


def test_descendants_are_those_of_psutil_also_of_threads_and_of_children() -> None:
    process = begin_process(PARENT)
    try:
        here = psutil.Process()
        expected = {child.pid for child in here.children(recursive=True)}
        (grandchild,) = psutil.Process(process.pid).children()
        assert {process.pid, grandchild.pid} <= set(list_descendants(here))
        assert set(list_descendants(here)) == expected
    finally:
        end_process(process)


def test_without_the_files_psutil_is_asked(
    monkeypatch: pytest.MonkeyPatch, working: subprocess.Popen[bytes]
) -> None:
    def refuse(path: str) -> bytes:
        raise FileNotFoundError(path)

    monkeypatch.setattr(processes, "_read_file", refuse)
    assert working.pid in list_descendants(psutil.Process())
    assert read_counts(psutil.Process()).threads >= threading.active_count()
    assert read_counts(psutil.Process()).resident_bytes > 1_000_000


def test_this_process_has_the_time_that_python_counts_for_it() -> None:
    before = os.times()
    counts = read_counts(psutil.Process())
    after = os.times()
    assert before.user + before.system - 0.05 <= counts.cpu_s <= after.user + after.system + 0.05
