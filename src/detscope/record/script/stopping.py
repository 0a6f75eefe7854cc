"""How a script is ended on purpose: as if it had called `sys.exit(0)` at the border of a step."""

from __future__ import annotations


class ScriptStopped(SystemExit):
    """`--max-steps` is reached: `finally` blocks and `atexit` handlers run, threads end in silence."""

    def __init__(self) -> None:
        super().__init__(0)
