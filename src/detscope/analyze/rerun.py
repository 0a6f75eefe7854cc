"""The command that does again what a run did; None where there is none that could."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

MADE_BY_SETTINGS = ("train", "infer")  # verbs whose config.toml repeats the run


def rerun_command(folder: Path, info: Mapping[str, Any]) -> str | None:
    """For a shell; settings of ours and options of the same verb may be put behind a `--config`."""
    verb = info.get("verb")
    if verb in MADE_BY_SETTINGS and (folder / "config.toml").is_file():
        return f"detscope {verb} --config {shlex.quote(str(folder / 'config.toml'))}"
    script = info.get("script") or {}
    command, at = script.get("command"), script.get("folder")
    alone = (info.get("rank") or {}).get("ranks", 1) == 1  # a launcher's own command is not known
    if verb != "run" or not command or not at or not alone:
        return None
    return f"detscope run {shlex.join(_from_here(command, Path(at)))}"


def _from_here(command: list[str], folder: Path) -> list[str]:
    """The script as it was typed, or by its whole path where that was typed in another folder."""
    name, *arguments = command
    with suppress(OSError):  # the current folder is gone
        if folder == Path.cwd():
            return command
    return [str(folder / name), *arguments] if (folder / name).is_file() else command
