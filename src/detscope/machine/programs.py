"""Where programs are that detscope can use but does not need: browser, Nsight, make, docker."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Nsight's installers leave PATH alone; these are the places they unpack to, newest last by name.
_NSIGHT_PLACES = {
    "nsys": (
        "/opt/nvidia/nsight-systems/*/bin",
        "/usr/local/cuda*/bin",
        "/opt/nvidia/nsight-systems-cli/*/bin",
    ),
    "ncu": ("/opt/nvidia/nsight-compute/*", "/usr/local/cuda*/bin", "/usr/local/cuda*/nsight-compute*"),
}
_PLAYWRIGHT_PLACES = ("chromium-*/chrome-linux*/chrome", "chromium_headless_shell-*/*/*headless*shell")


def find_program(names: Iterable[str]) -> Path | None:
    """The first of these programs that is on PATH."""
    found = (shutil.which(name) for name in names)
    return next((Path(path) for path in found if path), None)


def find_browser() -> Path | None:
    """A Chromium on PATH, or one that Playwright has downloaded for this user."""
    on_path = find_program(BROWSERS)
    if on_path:
        return on_path
    cache = Path.home() / ".cache" / "ms-playwright"
    places = (path for pattern in _PLAYWRIGHT_PLACES for path in sorted(cache.glob(pattern), reverse=True))
    return next(places, None)


def find_nsight(name: str, root: Path = Path("/")) -> Path | None:
    """`nsys` or `ncu`, on PATH or where NVIDIA's installers put it below `root`."""
    on_path = find_program((name,))
    if on_path:
        return on_path
    for pattern in _NSIGHT_PLACES[name]:
        for folder in sorted(root.glob(pattern.lstrip("/")), reverse=True):
            if (folder / name).is_file():
                return folder / name
    return None
