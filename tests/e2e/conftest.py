"""What the tests of commands share: a process that has torch already, and children of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


class TorchServer:
    """Children that begin with torch imported: 0.1 s instead of several, and otherwise as always."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("torch_server.py"))]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(
        self,
        *arguments: str,
        folder: Path,
        imports: tuple[str, ...] = ("torch",),
        script: bool = False,
        meanwhile: Callable[[int], None] = lambda _process: None,
    ) -> Ended:
        """Run `detscope ARGUMENTS`, or a script; `meanwhile` is told the child's process id."""
        asking, answers = self._pipes()
        order = {"imports": imports, "folder": str(folder), "script": script}
        order["arguments"] = list(arguments) if script else ["detscope", *arguments]
        asking.write(json.dumps(order) + "\n")
        asking.flush()
        meanwhile(int(answers.readline()))
        code = int(answers.readline())
        return Ended(code, (folder / "out").read_text(), (folder / "err").read_text())

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def end(self) -> None:
        """No more orders."""
        asking, answers = self._pipes()
        asking.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        answers.close()


@pytest.fixture(scope="session")
def torch_server() -> Iterator[TorchServer]:
    server = TorchServer()
    yield server
    server.end()
