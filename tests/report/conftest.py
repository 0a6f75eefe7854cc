"""A browser for tests that look at pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browsing import PATIENCE_MS

from detscope.machine.programs import find_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = find_browser()
    if found is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=str(found), args=["--no-sandbox"], timeout=PATIENCE_MS
        )
        yield opened
        opened.close()
