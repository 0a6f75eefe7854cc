"""An MCP server on standard input and output: tools that read a folder of runs and write nothing.

What the tools need is imported when they are first listed or called: a client that starts the server is
greeted at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types as wire
import msgspec
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from detscope.errors import InputError, UsageError
from detscope.faults import classify_fault, describe_error, one_line

if TYPE_CHECKING:
    from detscope.agents.bounds import Answer, Told
    from detscope.agents.questions import Question

_INSTRUCTIONS = (
    "Figures of recorded training and inference of object detectors. Begin with list_runs or summary;"
    " findings name what to change and the line; compare says whether a change can be told from noise."
    " Answers stay below 8 kB: `cut` and `next` say what is left out and how to ask for it. Nothing is run"
    " or written."
)
_LONGEST_ERROR = 1000


@dataclass(frozen=True)
class RunTool:
    """A question that can be asked, and who answers it."""

    name: str
    question: type[Question]
    answer: type[Answer]
    make: Callable[[Path, Any], Told]

    def describe(self) -> wire.Tool:
        """The tool as clients list it."""
        return wire.Tool(
            name=self.name,
            description=self.question.__doc__,
            input_schema=_object_schema(self.question),
            output_schema=_object_schema(self.answer),
            annotations=wire.ToolAnnotations(read_only_hint=True, open_world_hint=False),
        )


@cache
def list_tools() -> dict[str, RunTool]:
    """All tools by name."""
    from detscope.agents import answers as tell
    from detscope.agents import questions as ask

    tools = (
        RunTool("list_runs", ask.RunsQuestion, tell.RunPage, tell.answer_runs),
        RunTool("summary", ask.SummaryQuestion, tell.RunDigest, tell.answer_summary),
        RunTool("findings", ask.FindingsQuestion, tell.FindingPage, tell.answer_findings),
        RunTool("section", ask.SectionQuestion, tell.SectionPage, tell.answer_section),
        RunTool("compare", ask.CompareQuestion, tell.ComparisonPage, tell.answer_comparison),
        RunTool("definitions", ask.DefinitionsQuestion, tell.DefinitionPage, tell.answer_definitions),
    )
    return {tool.name: tool for tool in tools}


def answer_call(folder: Path, name: str, arguments: Mapping[str, Any]) -> wire.CallToolResult:
    """What a tool answers; whatever goes wrong is an error of the tool in one line, with a hint."""
    try:
        told, text = _answer(folder, name, arguments)
    except BaseException as error:  # of this thread alone; polars panics outside of Exception
        fault = classify_fault(error)
        words = f"internal error: {describe_error(error)}" if fault is None else f"error: {fault.message}"
        lines = [one_line(words, _LONGEST_ERROR)]
        if fault is not None and fault.hint:
            lines.append(f"hint: {one_line(fault.hint, _LONGEST_ERROR)}")
        return wire.CallToolResult(content=[_text("\n".join(lines))], is_error=True)
    return wire.CallToolResult(content=[_text(text)], structured_content=told)


def serve_runs(folder: Path, version: str) -> None:
    """Answer until the client closes standard input, or until Ctrl-C."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            # a thread waits for the client's next line and cannot be woken; there is nothing to put in order
            signal.signal(number, lambda *_: os._exit(0))
    if sys.stdin is None or sys.stdout is None:
        return
    if sys.stdin.isatty():
        print("an MCP client speaks to this on standard input; Ctrl-C ends it", file=sys.stderr)
    try:
        anyio.run(_serve, folder, version)
    except* BrokenPipeError:  # the client went without a word
        pass


async def _serve(folder: Path, version: str) -> None:
    async def describe_tools(_context: object, _params: object) -> wire.ListToolsResult:
        return wire.ListToolsResult(tools=[tool.describe() for tool in list_tools().values()])

    async def call_tool(_context: object, params: wire.CallToolRequestParams) -> wire.CallToolResult:
        return await anyio.to_thread.run_sync(answer_call, folder, params.name, params.arguments or {})

    server = Server(
        "detscope",
        version=version,
        instructions=_INSTRUCTIONS,
        on_list_tools=describe_tools,
        on_call_tool=call_tool,
    )
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _answer(folder: Path, name: str, arguments: Mapping[str, Any]) -> tuple[Told, str]:
    from detscope.agents.bounds import dump_answer

    tool = list_tools().get(name)
    if tool is None:
        raise UsageError(f"no tool named {name!r}", f"one of {', '.join(list_tools())}")
    try:
        asked = msgspec.convert(arguments, tool.question)
    except msgspec.ValidationError as error:
        takes = ", ".join(tool.question.__struct_fields__)
        raise UsageError(f"{name}: {error}", f"it takes {takes}") from error
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder", "start detscope mcp with --runs FOLDER")
    told = tool.make(folder, asked)
    return told, dump_answer(told)


def _object_schema(kind: type[Question] | type[Answer]) -> dict[str, Any]:
    """The schema of a struct whose root is the object itself, as the protocol asks for it."""
    from detscope.analyze.schema import schema_of
    from detscope.analyze.summary import SUMMARY_SCHEMA

    made = schema_of(kind, (kind.__doc__ or "").strip(), SUMMARY_SCHEMA)
    made.pop("$ref", None)
    root = made["$defs"].pop(kind.__name__)
    return {**made, **root, "title": made["title"]}


def _text(text: str) -> wire.TextContent:
    return wire.TextContent(type="text", text=text)
