"""One thread for torch, and which tests may run side by side (`make test` uses two processes)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models gain nothing from two threads, and lose much
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

HERE = Path(__file__).parent
TOGETHER = ("sweep",)  # rooms whose files start and kill many processes: one file after the other


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a file stay in one process and in order: they share what they have built."""
    for item in items:
        room, *rest = item.path.relative_to(HERE).parts
        group = room if room in TOGETHER or not rest else "/".join((room, *rest))
        item.add_marker(pytest.mark.xdist_group(group))
