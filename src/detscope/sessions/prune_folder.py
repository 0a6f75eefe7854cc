"""Writing a network's folder: beside its place, tried out, synced, and only then given its name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.runs.atomic import storage_error
from detscope.zoo.pruning.folder import write_folder

if TYPE_CHECKING:
    from detscope.zoo.networks.network import Network


def place_folder(
    folder: Path,
    network: Network,
    card: Mapping[str, Any],
    *,
    force: bool,
    check: Callable[[Network, Path], None],
) -> Path:
    """Write the network, let `check` try the written folder, and put it in its place; whole or not at all."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        write_folder(aside, network.module, card)
        check(network, aside)
        for file in aside.iterdir():
            _sync(file)
        _give_name(aside, folder, force)
    except OSError as problem:
        raise storage_error(folder, problem) from problem
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def _give_name(aside: Path, folder: Path, force: bool) -> None:
    if not force or not folder.exists():
        aside.rename(folder)
        return
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    folder.rename(old)
    aside.rename(folder)
    shutil.rmtree(old)


def _sync(file: Path) -> None:
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
