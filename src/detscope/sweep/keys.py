"""What makes a result this result: configuration, network, environment; as facts and as short keys."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detscope.errors import InputError
from detscope.machine.devices import list_gpus
from detscope.machine.facts import cpu_model, package_version, torch_cuda_version
from detscope.machine.limits import usable_cores
from detscope.machine.probe import list_torch_devices

_PACKAGES = ("torch", "torchvision", "timm", "effdet", "numpy")


def canonical_json(value: object) -> str:
    """JSON that is the same for the same content."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def make_key(value: object) -> str:
    """A short key of some content."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()[:20]


def make_identity(
    values: Mapping[str, Any],
    fingerprint: str,
    settings: Sequence[object],
    device: str,
    environment: str,
    repetition: int = 0,
) -> dict[str, Any]:
    """What tells a trial from all others, as columns of the store; `settings` decide about its figures."""
    configuration = make_key([values, fingerprint, *settings])
    return {
        **values,
        "trial": make_key([configuration, device, environment, repetition]),
        "configuration": configuration,
        "device": device,
        "environment": environment,
        "repetition": repetition,
        "fingerprint": fingerprint,
    }


def read_environment() -> dict[str, Any]:
    """What a figure depends on besides its configuration; torch is asked in a process of its own.

    Devices are those that torch sees, which CUDA_VISIBLE_DEVICES may have chosen among the driver's.
    """
    import platform

    seen = list_torch_devices()
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": cpu_model(),
        "cores": usable_cores(),
        "threads_asked": os.environ.get("OMP_NUM_THREADS"),
        "accelerator": seen.kind if seen.devices else None,
        "gpus": [one.name for one in seen.devices],
        "driver": list_gpus().driver,
        "cuda": torch_cuda_version(),
        "packages": {name: package_version(name) for name in _PACKAGES},
    }


def network_fingerprint(network: str, folder: Path) -> str:
    """A key of a network's files; of a model known by name, its name: versions are in the environment."""
    path = find_network_path(network, folder)
    if path is None:
        return f"name:{network}"
    if path.is_file():
        return f"file:{_digest_file(path)}"
    files = sorted(file for file in path.rglob("*") if file.is_file())
    if not files:
        raise InputError(f"{path}: an empty folder is no network", "make networks with `detscope prune`")
    return "folder:" + make_key([[file.relative_to(path).as_posix(), _digest_file(file)] for file in files])


def find_network_path(network: str, folder: Path) -> Path | None:
    """The folder or file of a network; None for a name."""
    text = network.rpartition(":")[0] if ":" in network else network
    path = folder / text
    if ":" in network and text.endswith(".py"):
        return path if path.is_file() else None
    return path if path.is_dir() else None


def locate_network(network: str, folder: Path) -> str:
    """The network as a process elsewhere finds it: paths are whole, names stay names."""
    path = find_network_path(network, folder)
    if path is None:
        return network
    return f"{path}:{network.rpartition(':')[2]}" if path.is_file() else str(path)


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:20]


def list_differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Keys that both have and whose values differ: `environment.packages.torch: was 2.10, is 2.15`."""
    found: list[str] = []
    for name, old in before.items():
        if name not in now:
            continue
        new = now[name]
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += list_differences(old, new, f"{prefix}{name}.")
        elif old != new:
            found.append(f"{prefix}{name}: was {_show_value(old)}, is {_show_value(new)}")
    return found


def _show_value(value: object) -> str:
    text = value if isinstance(value, str) else canonical_json(value)
    return text if len(text) <= 60 else text[:59] + "…"
