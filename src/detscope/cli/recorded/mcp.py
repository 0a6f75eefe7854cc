"""`detscope mcp`: recorded runs for agents and editors; needs neither torch nor the runs' machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def mcp(
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder of run folders.")] = Path(
        "runs"
    ),
) -> None:
    """Answer an agent's questions about recorded runs: an MCP server on standard input and output.

    It reads and never writes; runs outside of the folder are refused.
    """
    from detscope import __version__
    from detscope.extras import require_package

    require_package("mcp")
    from detscope.agents.server import serve_runs

    serve_runs(runs, __version__)
