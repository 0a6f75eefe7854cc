"""Versions of what matters for a result, read from package metadata: nothing is imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path

PACKAGES = ("detscope", "torch", "torchvision", "numpy", "effdet", "timm", "polars")


def package_versions() -> dict[str, str | None]:
    """Installed version of each package; None where it is not installed."""
    return {name: package_version(name) for name in PACKAGES}


def package_version(name: str) -> str | None:
    """Installed version of one package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_cuda_version() -> str | None:
    """CUDA version torch was built for; None for a CPU-only build or without torch.

    Read from torch's version file, because importing torch takes seconds.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found.group(1) if found else None
