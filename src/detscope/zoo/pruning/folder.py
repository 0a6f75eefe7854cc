"""A network as a folder: `network.json`, which says how to build it again, and `weights.safetensors`.

Nothing in it is code: the base model is built by its name, cut by the channel plan, filled with the weights.

Format history
  1  first version
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from detscope.errors import InputError, UsageError
from detscope.zoo.networks import NetworkBase, find_base
from detscope.zoo.pruning.layers import Indices, LayerCut
from detscope.zoo.weights import compute_sha256

if TYPE_CHECKING:
    from torch import Tensor, nn

FORMAT = "detscope network"
FORMAT_VERSION = 1
CARD_FILE = "network.json"
WEIGHTS_FILE = "weights.safetensors"
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_MOST_CHANNELS = 10**7  # of a layer; a damaged file must not ask for more memory than the machine has
_MAKE_AGAIN = "make it again with `detscope prune`"


@dataclass(frozen=True)
class StoredNetwork:
    """A folder that was read and checked, before its network is built."""

    folder: Path
    card: dict[str, Any]
    base: NetworkBase
    cuts: dict[str, LayerCut]


def is_network_folder(path: Path) -> bool:
    """Whether this is a folder of a network, damaged or not."""
    return (path / CARD_FILE).is_file()


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """All that a network's weights file holds: parameters and lasting buffers, each once."""
    passing = {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        for name in part._non_persistent_buffers_set
    }
    tensors: dict[str, Tensor] = {name: value.detach() for name, value in module.named_parameters()}
    return tensors | {name: value for name, value in module.named_buffers() if name not in passing}


def write_folder(folder: Path, module: nn.Module, card: Mapping[str, Any]) -> dict[str, Any]:
    """Write weights and card into an empty folder; the card as written."""
    from safetensors.torch import save_file

    weights = folder / WEIGHTS_FILE
    save_file({name: value.contiguous() for name, value in own_tensors(module).items()}, weights)
    whole = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        **card,
        "weights": {"file": WEIGHTS_FILE, "bytes": weights.stat().st_size, "sha256": compute_sha256(weights)},
    }
    (folder / CARD_FILE).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    weights.chmod((folder / CARD_FILE).stat().st_mode)  # safetensors makes a file for its owner alone
    return whole


def cuts_to_json(cuts: Mapping[str, LayerCut]) -> dict[str, Any]:
    """The channel plan as it stands in the card: what is removed of each layer, as ranges."""
    return {
        name: {side: format_ranges(channels) for side, channels in layer.removed.items()}
        | ({} if layer.axis is None else {"axis": layer.axis})
        for name, layer in cuts.items()
    }


def format_ranges(channels: Indices) -> str:
    """Sorted channel numbers as `0-3,7,9-12`: short in a file, and a person can read it."""
    if not len(channels):
        return ""
    breaks = np.flatnonzero(np.diff(channels) != 1)
    firsts = channels[np.append(0, breaks + 1)].tolist()
    lasts = channels[np.append(breaks, len(channels) - 1)].tolist()
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True))


def parse_ranges(text: str) -> Indices:
    """Channel numbers from ranges; ValueError where the text is none, or not in ascending order."""
    parts, before = [], -1
    for piece in text.split(",") if text else []:
        found = _RANGE.fullmatch(piece)
        if found is None:
            raise ValueError(f"{piece[:40]!r} is no range of channels")
        first = int(found[1])
        last = int(found[2]) if found[2] is not None else first
        if not before < first <= last < _MOST_CHANNELS:
            raise ValueError(f"channels {piece} are out of order or too many")
        parts.append(np.arange(first, last + 1, dtype=np.int64))
        before = last
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def read_folder(folder: Path) -> StoredNetwork:
    """Read and check a folder; whatever is wrong with it is an InputError of one line."""
    card = _read_card(folder / CARD_FILE)
    try:
        base = NetworkBase(str(card["base"]["name"]), str(card["base"]["source"]), card["base"]["kind"])
        cuts = {}
        for name, layer in card["plan"].items():
            removed = {side: parse_ranges(str(text)) for side, text in layer.items() if side != "axis"}
            axis = layer.get("axis")
            cuts[str(name)] = LayerCut(removed, None if axis is None else int(axis))
        weights = card["weights"]
        size, checksum = int(weights["bytes"]), str(weights["sha256"])
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise _report_damage(folder / CARD_FILE, f"{type(problem).__name__}: {problem}") from problem
    _check_base(folder / CARD_FILE, base)
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise _report_damage(path, "the file is missing")
    if path.stat().st_size != size:
        raise _report_damage(path, f"{path.stat().st_size} bytes, expected {size}")
    found = compute_sha256(path)
    if found != checksum:
        raise _report_damage(path, f"sha256 {found[:12]}..., expected {checksum[:12]}...")
    return StoredNetwork(folder, card, base, cuts)


def fill_weights(module: nn.Module, stored: StoredNetwork) -> None:
    """Copy the folder's weights into the module, which must have exactly their names and shapes.

    Copied and not mapped: measured memory is then the process's own, and the file may go.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    path = stored.folder / WEIGHTS_FILE
    wanted = own_tensors(module)
    try:
        with safe_open(path, framework="pt") as file, torch.no_grad():
            names = set(file.keys())
            if names != set(wanted):
                odd = sorted(names ^ set(wanted))
                raise _report_damage(
                    path, f"{len(odd)} tensors are missing or unknown, the first is {odd[0]}"
                )
            for name, tensor in wanted.items():
                found = file.get_tensor(name)
                if found.shape != tensor.shape or found.dtype != tensor.dtype:
                    raise _report_damage(
                        path, f"{name} is {tuple(found.shape)}, expected {tuple(tensor.shape)}"
                    )
                tensor.copy_(found)
    except (SafetensorError, OSError) as problem:
        raise _report_damage(path, str(problem)) from problem


def _check_base(path: Path, base: NetworkBase) -> None:
    """Only what a library lists by name: a folder must not be able to name code to run or files to fetch."""
    if base.kind not in ("classifier", "detector") or base.source not in ("torchvision", "timm", "zoo"):
        raise _report_damage(path, f"a {base.kind} of {base.source} is not known")
    try:
        known = ":" not in base.name and find_base(base.full_name) == base
    except UsageError:
        known = False
    if not known:
        raise InputError(
            f"{path}: {base.name!r} is no model's name that {base.source} knows here",
            "it was made with another version of the library, or by hand",
        )


def _read_card(path: Path) -> dict[str, Any]:
    if not path.parent.is_dir():
        raise InputError(f"there is no network folder {path.parent}", "`detscope prune` makes some")
    if not path.is_file():
        raise InputError(
            f"{path.parent} is no network folder: it has no {CARD_FILE}",
            "`detscope prune` makes such folders",
        )
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as problem:
        raise _report_damage(path, f"it cannot be read as JSON ({problem})") from problem
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise InputError(f"{path} was not written by detscope prune", "name a folder that it made")
    version = card.get("version")
    if not isinstance(version, int) or version < 1:
        raise _report_damage(path, f"its version is {version!r}")
    if version > FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {version}, this detscope knows up to {FORMAT_VERSION}",
            "install a newer detscope",
        )
    return card


def _report_damage(path: Path, what: str) -> InputError:
    first_line = (what.strip().splitlines() or [""])[0][:200]
    return InputError(f"{path} is damaged: {first_line}", _MAKE_AGAIN)
