"""A process that has torch already, and real children of it for the tests of commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LONGEST_S = 900
# what a recorded training imports: each child would do so for itself
RECORDING = (
    "torch",
    "torch._dynamo",
    "polars",
    "pydantic.type_adapter",
    "detscope.cli.main",
    "detscope.record.script.hooks",
    "detscope.report.files",
    "detscope.report.memory_csv",
    "detscope.report.trace",
    "detscope.sessions.run.watch",
)
DETECTION = (*RECORDING, "torchvision.models.detection", "detscope.sessions.train.loop")


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


class TorchServer:
    """Children that begin with torch imported: 0.1 s instead of several, and otherwise as always."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("torch_server.py"))]
        self._folder = folder
        self._orders = 0
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(
        self,
        *arguments: str,
        folder: Path,
        imports: tuple[str, ...] = RECORDING,
        script: bool = False,
        module: bool = False,
        teardown: bool = False,
        working: bool = False,
        meanwhile: Callable[[int], None] = lambda _process: None,
    ) -> Ended:
        """Run `detscope ARGUMENTS`, a script, or a module of tests/; `meanwhile` is told the child's number.

        The child has a session of its own, as with `start_new_session`: its group has its number. With
        `teardown` it ends as Python ends, modules taken apart; without, a second earlier. With `working` its
        time is its own work and sleep, which others cannot hold up: see `working_time`.
        """
        asking, answers = self._pipes()
        order = {"imports": imports, "folder": str(folder), "teardown": teardown, "working": working}
        order |= {"script": script, "module": module}
        order["arguments"] = list(arguments) if script or module else ["detscope", *arguments]
        self._orders += 1
        streams = [self._folder / f"{self._orders}-{stream}" for stream in ("out", "err")]
        order["streams"] = [str(stream) for stream in streams]
        asking.write(json.dumps(order) + "\n")
        asking.flush()
        child = int(answers.readline())
        limit = threading.Timer(LONGEST_S, os.killpg, (child, signal.SIGKILL))
        limit.start()
        try:
            meanwhile(child)
        except BaseException:
            os.killpg(child, signal.SIGKILL)
            raise
        finally:
            code = int(answers.readline())
            limit.cancel()
        return Ended(code, *(stream.read_text() for stream in streams))

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def end(self) -> None:
        """No more orders."""
        asking, answers = self._pipes()
        asking.close()
        try:
            self._process.wait(180)
        except subprocess.TimeoutExpired:
            self._process.kill()
        answers.close()


def wait_for(folder: Path, pattern: str) -> None:
    """Until a command has written such a file."""
    deadline = time.monotonic() + 900
    while not list(folder.glob(pattern)):
        assert time.monotonic() < deadline, f"no {pattern}"
        time.sleep(0.01)
