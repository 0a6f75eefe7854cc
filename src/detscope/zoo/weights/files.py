"""Reading weights from a file that may be anything: never runs code from it, names what is wrong."""

from __future__ import annotations

import hashlib
import itertools
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

_NESTED_UNDER = ("model", "state_dict", "model_state_dict")
_RETRY_HINT = "save it again with torch.save(model.state_dict(), FILE) or as .safetensors"


def compute_sha256(path: Path) -> str:
    """Checksum of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """The state dict in a .safetensors or torch file; every problem is an InputError that names the file."""
    with path.open("rb") as file:
        head = file.read(512)
    if not head:
        raise InputError(f"weights file {path} is empty (0 bytes)", "copy or download it again")
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise InputError(
            f"weights file {path} is an HTML page, not weights{_checksum_text(path)}",
            "the server answered with a page; download the file itself",
        )
    loaded = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    return _plain_state_dict(loaded, path)


def _read_safetensors(path: Path) -> Mapping[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as problem:
        raise InputError(
            f"weights file {path} cannot be read as safetensors: {problem}{_checksum_text(path)}",
            "the file is damaged or not in this format; copy or download it again",
        ) from problem


def _read_torch(path: Path) -> object:
    import torch

    try:
        with warnings.catch_warnings():
            # torch warns before it raises on TorchScript archives; the error below says it all
            warnings.simplefilter("ignore", UserWarning)
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as problem:
        if "global" in str(problem).lower():
            raise InputError(
                f"weights file {path} refused: it would run code or load classes ({_first_global(problem)})",
                f"only plain tensors are loaded, never code; {_RETRY_HINT}",
            ) from problem
        raise _report_damage(path, problem) from problem
    except Exception as problem:  # torch raises many kinds on damaged files; each is bad input
        raise _report_damage(path, problem) from problem


def _report_damage(path: Path, problem: Exception) -> InputError:
    # torch wraps the cause in advice on how to load unsafely, which is not wanted here
    _, _, cause = str(problem).rpartition("WeightsUnpickler error: ")
    first_line = (cause.strip().splitlines() or [""])[0][:100]
    reason = f"{type(problem).__name__}: {first_line}"
    return InputError(
        f"weights file {path} is damaged or no weights file: {reason}{_checksum_text(path)}",
        f"copy or download it again, or {_RETRY_HINT}",
    )


def _first_global(problem: Exception) -> str:
    words = str(problem).replace("\n", " ").split()
    for word, following in itertools.pairwise(words):
        if word.lower() == "global" and "." in following:
            return following.strip(".,`'\"")
    return "an object that is no tensor"


def _checksum_text(path: Path) -> str:
    return f" ({path.stat().st_size} bytes, sha256 {compute_sha256(path)})"


def _plain_state_dict(loaded: object, path: Path) -> dict[str, Tensor]:
    import torch

    found = loaded
    if isinstance(loaded, Mapping):
        found = next((loaded[key] for key in _NESTED_UNDER if isinstance(loaded.get(key), Mapping)), loaded)
    if not isinstance(found, Mapping) or not found:
        raise InputError(
            f"weights file {path} holds {type(loaded).__name__}, not a state dict",
            f"expected tensors by name, at the top or under {', '.join(_NESTED_UNDER)}",
        )
    strangers = [str(key) for key, value in found.items() if not isinstance(value, torch.Tensor)]
    if strangers:
        raise InputError(
            f"weights file {path}: {len(strangers)} entries are no tensors, the first is {strangers[0]!r}",
            f"expected tensors by name, at the top or under {', '.join(_NESTED_UNDER)}",
        )
    return {str(key).removeprefix("module."): value for key, value in found.items()}
