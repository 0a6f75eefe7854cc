"""Environments in which one version of a library runs: one base with torch, one folder for each version.

The base is what `make test-families` installs. A version goes alone, without what it asks for, into a
`site-packages` of its own that stands before the base's: so that pair after pair fetches a few megabytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".bench-environments"
OFFLINE = {"HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"}


def make_base(folder: Path) -> Path:
    """The Python of the base, installed when it is not there."""
    base = folder / "base"
    mark = base / ".installed-families"
    words = ["make", "--no-print-directory", f"VENV={base}", str(mark)]
    subprocess.run(words, cwd=ROOT, check=True, stdout=sys.stderr)
    return base / "bin" / "python"


def make_version(folder: Path, package: str, version: str, beside: tuple[str, ...] = ()) -> Path:
    """The folder that holds `package` at `version` and what stands `beside` it, as the base has not."""
    place = folder / f"{package}-{version}" / "site-packages"
    done = place.parent / ".installed"
    if not done.exists():
        words = ["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(place)]
        subprocess.run(
            [sys.executable, *words, f"{package}=={version}", *beside], check=True, stdout=sys.stderr
        )
        done.touch()
    return place


def describe_environment(version_folder: Path) -> dict[str, str]:
    """Variables with which the base's Python finds that version first, detscope as it is here, and no hub."""
    paths = [str(version_folder), str(ROOT / "src")]
    return os.environ | OFFLINE | {"PYTHONPATH": os.pathsep.join(paths)}
