"""Looking at pages with a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_MS = 900_000  # a machine with other work can hold a browser up for long
LOOK_EVERY_MS = 50
LOOKS = PATIENCE_MS // LOOK_EVERY_MS


def until(page: Any, holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds; looks are counted, because time passes also where nothing runs."""
    for _ in range(LOOKS):
        if holds():
            return
        page.wait_for_timeout(LOOK_EVERY_MS)
    raise AssertionError(f"it never came: {what}")


def after_some_frames(page: Any) -> None:
    """Whatever the page does when it has been scrolled or drawn, it has done by now."""
    frame = "new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))"
    for _ in range(3):
        page.evaluate(frame)


class Visit:
    """A page opened from a file, and everything it complained about."""

    def __init__(self, browser: Any, path: Path, **context: Any) -> None:
        opened = browser.new_context(**context)
        opened.set_default_timeout(PATIENCE_MS)
        self.page = opened.new_page()
        self.complaints: list[str] = []
        self.page.on(
            "console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append("a dialog"), dialog.dismiss()))
        self.page.on("request", self._request)
        self.page.goto(path.resolve().as_uri())
        if context.get("java_script_enabled", True):
            self.page.locator("html.scripted").wait_for(state="attached")

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.complaints.append(request.url)

    def unfold(self) -> None:
        """Open every table, as before printing."""
        self.page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
        after_some_frames(self.page)
