"""Frames while zooming and moving a timeline of 20,000 spans in a real browser: intervals between them."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np

from detscope.machine.programs import find_browser
from detscope.report.files import write_report
from detscope.runs.writer import RunWriter

SPANS, DEPTH, STEP_NS = 20_000, 8, 400_000_000
FRAMES, ENOUGH_MS, ENOUGH_SHARE = 300, 33.4, 0.95
# every frame a key, as one that is held down: in, along, out
_ZOOM = """async (frames) => {
  const canvas = document.querySelector(".timeline canvas"), times = [];
  canvas.focus();
  const keys = [..."wwwwwwwwwwwwwwddddddddaaaassssssssssssss"];
  for (let frame = 0; frame < frames; frame++) {
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: keys[frame % keys.length], bubbles: true }));
    times.push(await new Promise((done) => requestAnimationFrame(done)));
  }
  return times;
}"""


def make_wide_run(parent: Path, spans: int = SPANS) -> Path:
    """One step with so many modules and operators, nested, of very different lengths."""
    generator = np.random.default_rng(0)
    writer = RunWriter(parent, "train", "wide", {"device": "cpu", "level": "ops"})
    writer.append_rows("steps", [(0, 0, "recorded", "step", 0, STEP_NS, None)])
    writer.append_rows("timeline", [(0, "steps", "step 0", "", 0, STEP_NS)])
    half = STEP_NS // 2
    phases = [("forward", 0), ("backward", half)]
    writer.append_rows("timeline", [(0, "phases", phase, "", start, half) for phase, start in phases])
    each = spans // (2 * DEPTH)
    for depth in range(DEPTH):
        for track in ("modules", "operators"):
            borders = np.sort(generator.integers(0, STEP_NS, each + 1))
            borders[0], borders[-1] = 0, STEP_NS
            rows = [
                (
                    0,
                    track,
                    f"{track}.{depth}.{place % 400}",
                    "forward" if end < half else "backward",
                    start,
                    end - start,
                )
                for place, (start, end) in enumerate(
                    zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True)
                )
                if end > start
            ]
            writer.append_rows("timeline", rows)
    writer.close_run("ok", None)
    return writer.folder


def measure_frames(page_file: Path, frames: int = FRAMES) -> list[float]:
    """Milliseconds between frames."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(find_browser()), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(page_file.resolve().as_uri() + "#step=0")
        page.wait_for_selector(".timeline[data-ready]")
        page.evaluate(_ZOOM, 40)
        times: list[float] = page.evaluate(_ZOOM, frames)
        browser.close()
    return [end - start for start, end in pairwise(times)]


def main() -> None:
    """Print the intervals between frames, and how many are within 33 ms (two frames of a 60 Hz screen)."""
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(make_wide_run(Path(folder)))
        intervals = np.array(measure_frames(page))
    within = float((intervals <= ENOUGH_MS).mean())
    middle, high = np.percentile(intervals, [50, 95])
    verdict = "enough" if within >= ENOUGH_SHARE else "too few"
    print(f"timeline of {SPANS:,} spans, {len(intervals)} frames while zooming and moving by keyboard")
    print(f"  interval p50 {middle:.1f} ms, p95 {high:.1f} ms, longest {intervals.max():.1f} ms")
    print(f"  within 33 ms: {100 * within:.1f} % ({verdict}: at least {100 * ENOUGH_SHARE:.0f} % wanted)")
