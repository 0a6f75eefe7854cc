"""Looking at pages with a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Visit:
    """A page opened from a file, and everything it complained about."""

    def __init__(self, browser: Any, path: Path, **context: Any) -> None:
        self.page = browser.new_context(**context).new_page()
        self.complaints: list[str] = []
        self.page.on(
            "console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append("a dialog"), dialog.dismiss()))
        self.page.on("request", self._request)
        self.page.goto(path.resolve().as_uri())

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.complaints.append(request.url)

    def draw(self) -> None:
        """Have all charts drawn, as before printing, and not only those near the screen."""
        self.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        self.page.wait_for_timeout(300)
