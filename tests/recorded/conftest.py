"""Files recorded by others: read from beside the project, and skipped with a reason where they are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DEFAULT = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def recorded() -> Path:
    """The folder of recorded files."""
    folder = Path(os.environ.get("DETSCOPE_RECORDED") or DEFAULT)
    if not (folder / "INDEX.md").is_file():
        pytest.skip(f"no recorded files in {folder}: set DETSCOPE_RECORDED")
    return folder
