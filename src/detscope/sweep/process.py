"""A process for trials: started in a session of its own, watched, and ended with all its children."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from detscope.sweep.limits import memory_killer_count
from detscope.sweep.outcome import Outcome, classify_exit, find_innermost_calls, shorten_text
from detscope.sweep.settings import TrialLimits

TRIAL_COMMAND = (sys.executable, "-m", "detscope.sweep.trial")
_TICK_S = 0.1
_LAST_WORDS_BYTES = 4000
_STACK_BYTES = 30_000
_GRACE_S = 5.0
_STACK_S = 0.5


class SweepStoppedError(Exception):
    """The sweep was stopped while this trial ran; it is abandoned."""


class TrialProcess:
    """One process: requests go in as lines of JSON, results come out on a pipe of their own."""

    def __init__(self, command: Sequence[str] = TRIAL_COMMAND) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._kills = memory_killer_count()
        self._pending = b""
        self._ready = False
        self.used = False
        inner, outer = os.pipe(), os.pipe()
        self._lifeline, self._results = inner[1], outer[0]
        try:
            self._process = subprocess.Popen(
                [*command, str(inner[0]), str(outer[1])],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                pass_fds=(inner[0], outer[1]),
                start_new_session=True,
            )
        finally:
            os.close(inner[0])
            os.close(outer[1])

    @property
    def process_id(self) -> int:
        """Of the process, and of its group."""
        return self._process.pid

    def run_request(self, request: Mapping[str, Any], limits: TrialLimits, stop: threading.Event) -> Outcome:
        """Hand a request over and watch what becomes of it; `SweepStoppedError` if the sweep is to end."""
        self.used = True
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        start = began = time.monotonic()
        while True:
            message = self._next_message(_TICK_S)
            if stop.is_set():
                self.end_group()
                raise SweepStoppedError
            now = time.monotonic()
            if message is not None and message.get("event") == "ready":
                self._ready, start = True, now
            elif message is not None:
                return _make_outcome(message, now - start)
            elif self._process.poll() is not None:
                message = self._next_message(0)  # what was written just before the end
                if message is not None and message.get("event") != "ready":
                    return _make_outcome(message, now - start)
                return self._explain_end(now - start)
            elif now - start > (limits.time_s if self._ready else limits.start_s):
                return self._explain_timeout(limits, now - began)

    def _next_message(self, wait_s: float) -> dict[str, Any] | None:
        if b"\n" not in self._pending:
            readable, _, _ = select.select([self._results], [], [], wait_s)
            chunk = os.read(self._results, 1 << 20) if readable else b""
            self._pending += chunk
            if readable and not chunk:  # closed: the process is about to end
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=wait_s)
        line, found, rest = self._pending.partition(b"\n")
        if not found:
            return None
        self._pending = rest
        message: dict[str, Any] = json.loads(line)
        return message

    def _explain_end(self, seconds: float) -> Outcome:
        code = self._process.wait()
        kills = memory_killer_count()
        killed = kills is not None and self._kills is not None and kills > self._kills
        found = classify_exit(code, self.read_last_words(), killed)
        self.end_group()
        return Outcome(found.kind, found.detail, found.message, {}, seconds, found.luck)

    def _explain_timeout(self, limits: TrialLimits, seconds: float) -> Outcome:
        if self._ready:  # it answers this signal by writing where it is
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process_id, signal.SIGUSR1)
            time.sleep(_STACK_S)
        what = f"within {limits.time_s:g} s" if self._ready else f"to start within {limits.start_s:g} s"
        place = find_innermost_calls(self._read_printed(_STACK_BYTES)) or self.read_last_words()
        self.end_group()
        words = f"did not end {what}; it was at: {place or 'cannot tell: it said nothing'}"
        return Outcome("timeout", "", shorten_text(words, 1500), {}, seconds)

    def read_last_words(self) -> str:
        """The end of what the process printed, on one line."""
        return shorten_text(" | ".join(self._read_printed(_LAST_WORDS_BYTES).splitlines()[-30:]), 1500)

    def _read_printed(self, most_bytes: int) -> str:
        # read at a place of our own: the process goes on writing at the file's shared one
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), most_bytes, max(0, size - most_bytes)).decode("utf-8", "replace")

    def end_group(self) -> None:
        """End the process and everything it started; at once, nothing of it is wanted any more."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process_id, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_GRACE_S)
        _wait_for_group(self.process_id)
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        for descriptor in (self._lifeline, self._results):
            if descriptor >= 0:
                os.close(descriptor)
        self._lifeline = self._results = -1
        self._log.close()


def _wait_for_group(group: int) -> None:
    """Wait until a group that was killed is gone; its dead may wait long for somebody to bury them."""
    ends = time.monotonic() + _GRACE_S
    while time.monotonic() < ends:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return
        import psutil

        living = False
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                own = os.getpgid(process.pid) == group
                living = living or (own and process.status() != psutil.STATUS_ZOMBIE)
        if not living:
            return
        time.sleep(0.01)


def _make_outcome(message: Mapping[str, Any], seconds: float) -> Outcome:
    return Outcome(
        str(message["kind"]),
        str(message.get("detail", "")),
        str(message.get("message", "")),
        message.get("result") or {},
        seconds,
        bool(message.get("luck", False)),
    )


class ProcessRunner:
    """Trials one after another on one device; a process is used again only after `ok`, if at all."""

    def __init__(self, limits: TrialLimits, reuse: bool, command: Sequence[str] = TRIAL_COMMAND) -> None:
        self._limits, self._reuse, self._command = limits, reuse, command
        self._process: TrialProcess | None = None

    def run_trial(self, request: Mapping[str, Any], stop: threading.Event) -> Outcome:
        """Run one trial in a process that no failed trial has been in."""
        process = self._process or TrialProcess(self._command)
        self._process = None
        try:
            outcome = process.run_request(request, self._limits, stop)
        except BaseException:
            process.end_group()
            raise
        if self._reuse and outcome.kind == "ok":
            self._process = process
        else:
            process.end_group()
        return outcome

    def close_runner(self) -> None:
        """End what is left."""
        if self._process is not None:
            self._process.end_group()
            self._process = None
