"""Every test knows its own trials: they carry its folder's name in their environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_trial import FOLDER


@pytest.fixture(autouse=True)
def trials_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
