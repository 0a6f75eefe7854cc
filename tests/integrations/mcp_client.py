"""The reference SDK's client, speaking to `detscope mcp` in a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("mcp")

from anyio.from_thread import start_blocking_portal
from jsonschema import Draft202012Validator
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp_types import CallToolResult, Tool

MOST_BYTES = 8000
SOURCE = Path(__file__).parents[2] / "src"
Call = tuple[str, dict[str, Any]]


@dataclass
class Conversation:
    """What a server listed, and what it answered call by call."""

    tools: dict[str, Tool] = field(default_factory=dict)
    answers: list[CallToolResult] = field(default_factory=list)

    def check(self, calls: Sequence[Call]) -> list[dict[str, Any]]:
        """Every answer is none of an error, below 8 kB, and as its tool declared it."""
        told = []
        for (name, _), answer in zip(calls, self.answers, strict=True):
            (content,) = answer.content
            assert not answer.is_error, content.text
            assert len(content.text.encode()) < MOST_BYTES
            schema = self.tools[name].output_schema
            errors = [
                error.message for error in Draft202012Validator(schema).iter_errors(answer.structured_content)
            ]
            assert errors == []
            told.append(answer.structured_content)
        return told


_ASKED: dict[Path, Callable[[Sequence[Call]], Conversation]] = {}  # servers that run, by folder


def server_command(runs: Path) -> list[str]:
    return [sys.executable, "-m", "detscope", "mcp", "--runs", str(runs)]


def server_environment(folder: Path) -> dict[str, str]:
    """An environment in which nobody can import torch."""
    poison = folder / "poison"
    poison.mkdir(exist_ok=True)
    (poison / "torch.py").write_text("raise ImportError('torch was imported')\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(poison), str(SOURCE)])}


@asynccontextmanager
async def open_session(runs: Path, work: Path) -> AsyncIterator[ClientSession]:
    """A server that was started for this folder."""
    command, *arguments = server_command(runs)
    server = StdioServerParameters(command=command, args=arguments, env=server_environment(work), cwd=work)
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        yield session


async def talk(session: ClientSession, calls: Sequence[Call]) -> Conversation:
    """List its tools and ask."""
    found = Conversation({tool.name: tool for tool in (await session.list_tools()).tools})
    for name, arguments in calls:
        found.answers.append(await session.call_tool(name, arguments))
    return found


@contextmanager
def one_server(runs: Path, work: Path) -> Iterator[None]:
    """Whoever asks about this folder meanwhile asks the same server."""
    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(open_session(runs, work)) as session:
            _ASKED[runs] = lambda calls: portal.call(talk, session, calls)
            try:
                yield
            finally:
                del _ASKED[runs]


def converse(runs: Path, work: Path, calls: Sequence[Call]) -> Conversation:
    """Start the server, list its tools and ask."""

    async def start_and_talk() -> Conversation:
        async with open_session(runs, work) as session:
            return await talk(session, calls)

    return _ASKED[runs](calls) if runs in _ASKED else anyio.run(start_and_talk)


def ask(runs: Path, work: Path, *calls: Call) -> list[dict[str, Any]]:
    """What was answered, checked."""
    return converse(runs, work, calls).check(calls)


def refusal(runs: Path, work: Path, call: Call) -> list[str]:
    """The lines of a tool's error."""
    (answer,) = converse(runs, work, [call]).answers
    assert answer.is_error
    (content,) = answer.content
    return content.text.splitlines()
