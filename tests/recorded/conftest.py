"""Files recorded by others: their facts are here, the whole files beside the project where one has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recorded_facts import restore_all

DEFAULT = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def whole_files() -> Path:
    """The folder of the files as they were recorded."""
    folder = Path(os.environ.get("DETSCOPE_RECORDED") or DEFAULT)
    if not (folder / "INDEX.md").is_file():
        pytest.skip(f"no recorded files in {folder}: set DETSCOPE_RECORDED")
    return folder


@pytest.fixture(scope="session", params=["facts", pytest.param("whole", marks=pytest.mark.slow)])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of recorded files, made of their facts; `make test-slow` reads the whole files too."""
    if request.param == "whole":
        return request.getfixturevalue("whole_files")
    folder = tmp_path_factory.mktemp("recorded")
    restore_all(folder)
    return folder
