"""Frames while zooming and moving a timeline of 20,000 spans in a real browser: intervals between them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from detscope.machine.programs import find_browser
from detscope.report.files import write_report
from detscope.runs.writer import RunWriter

FloatArray = NDArray[np.float64]
SPANS, DEPTH, STEP_NS = 20_000, 8, 400_000_000
FRAMES, ENOUGH_MS, ENOUGH_SHARE = 300, 33.4, 0.95
# every frame a key, as one that is held down: in, along, out; or none, to see what the machine does by itself
_ZOOM = """async ([frames, presses]) => {
  const canvas = document.querySelector(".timeline canvas"), times = [];
  canvas.focus();
  const keys = [..."wwwwwwwwwwwwwwddddddddaaaassssssssssssss"];
  for (let frame = 0; frame < frames; frame++) {
    const key = keys[frame % keys.length];
    if (presses) canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    const drawn = (done) => requestAnimationFrame((at) => done([at, performance.now() - at]));
    times.push(await new Promise(drawn));
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


def measure_frames(page_file: Path, frames: int = FRAMES) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Intervals between frames and time in the page's script in each, in ms: while zooming, and at rest."""
    from playwright.sync_api import sync_playwright

    found = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(find_browser()), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(page_file.resolve().as_uri() + "#step=0")
        page.wait_for_selector(".timeline[data-ready]")
        page.evaluate(_ZOOM, [40, True])
        for name, presses in (("at rest", False), ("zooming", True)):
            times = np.array(page.evaluate(_ZOOM, [frames, presses]))
            found[name] = (np.diff(times[:, 0]), times[:, 1])
        browser.close()
    return found


def main() -> None:
    """Print the intervals between frames, and how many are within 33 ms (two frames of a 60 Hz screen)."""
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(make_wide_run(Path(folder)))
        found = measure_frames(page)
    print(f"timeline of {SPANS:,} spans, {FRAMES} frames: a key in each of them, and none for comparison")
    for name, (intervals, script) in found.items():
        middle, high = np.percentile(intervals, [50, 95])
        print(
            f"  {name}: interval p50 {middle:.1f} ms, p95 {high:.1f} ms, longest {intervals.max():.1f} ms;"
            f" script p50 {np.median(script):.1f} ms, p95 {np.percentile(script, 95):.1f} ms;"
            f" within 33 ms {100 * (intervals <= ENOUGH_MS).mean():.1f} %"
        )
    print(f"  wanted: {100 * ENOUGH_SHARE:.0f} % within 33 ms while zooming, where they are so at rest")
