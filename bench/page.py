"""The page: how large it is, when its first words and its first chart are painted; here and in an older tree.

    python -m bench page [--before=FOLDER_OF_AN_OLDER_TREE] [--runs=FOLDER]

Both trees make their page of the same four runs; a browser without a window opens them in turn. `--runs`
keeps the runs, so that a second call need not record them again. Sizes are those of the file; first paint
is the browser's own `first-contentful-paint`, the first chart is there when the frame that shows a part of
one is through; both are medians of several openings. What no page can be faster than, a page of one word,
is opened among them: where most of a paint is the browser's, the ratio without it says what the page costs.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from detscope.machine.programs import find_browser
from detscope.runs.schema import TABLES
from detscope.runs.writer import RunWriter, polars_schema

ROUNDS = 9
LIMIT_BYTES = {"100,000 steps": 2_000_000}  # of the others 1 MB
STEPS = 100_000
PHASES_MS = {"data": 5.0, "transfer": 0.1, "forward": 40.0, "backward": 50.0, "optimizer": 4.0, "other": 0.9}
TRACE = "traces/kineto/v100_resnet50_train_workers0.json.gz"
MANY_MODULES = "efficientdet_d0 --weights none --batch-size 2 --image-size 128 --steps 4 --level ops --memory"
WRITE = "import sys; from pathlib import Path; from detscope.report.files import write_report; "
WRITE += "write_report(sys.argv[1], target=Path(sys.argv[2]))"
PAINT = "performance.getEntriesByName('first-contentful-paint').map((entry) => entry.startTime)"
FLOOR = ("a page of one word", "floor")
# a bar, a line, a block of a tree, or what the older pages' library drew; looked for before every frame, and
# timed after the one that has it
CHART = """(() => {
  const parts = ".track i, svg.lines path, .tree i, .js-plotly-plot .main-svg path";
  const look = () => requestAnimationFrame(document.querySelector(parts) ? () => setTimeout(() => {
    globalThis.chartDrawn = performance.now();
  }) : look);
  look();
})();"""
CHARTED = "globalThis.chartDrawn ?? null"


Key = tuple[str, str]  # run, tree


@dataclass(frozen=True)
class OpeningTimes:
    """Of every opening of a page, ms after it was asked for."""

    paint: list[float]
    chart: list[float]


def main() -> None:
    """Sizes, first paints and first charts, and their ratios where there is an older tree."""
    before = _option("--before")
    if find_browser() is None:
        print("page: no Chromium on this machine, nothing was measured")
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(_option("--runs") or scratch)
        runs = _record_runs(folder)
        trees = {"here": Path(__file__).parents[1], **({"before": Path(before)} if before else {})}
        pages = {
            (name, tree): _write_page(run, trees[tree], Path(scratch) / f"{tree}-{number}.html")
            for number, (name, run) in enumerate(runs.items())
            for tree in trees
        }
        floor = Path(scratch) / "floor.html"
        floor.write_text("<!doctype html><title>one word</title><p>word")
        _print_times(pages, _measure_times({**pages, FLOOR: floor}))


def _print_times(pages: dict[Key, Path], times: dict[Key, OpeningTimes]) -> None:
    """A line per page, ratios beside those of this tree; then the floor."""
    floor_ms = statistics.median(times[FLOOR].paint)
    heads = f"{'MB':>7}{'paint ms':>10}{'ratio':>7}{'above floor':>13}{'chart ms':>10}{'ratio':>7}"
    print(f"\n{'run':18}{'tree':8}{heads}")
    for (name, tree), page in pages.items():
        size, own, old = page.stat().st_size, times[name, tree], times.get((name, "before"))
        paint_ms, chart_ms = statistics.median(own.paint), statistics.median(own.chart)
        cells = ["", "", ""]
        if old is not None and tree == "here":
            old_ms = statistics.median(old.paint)
            cells = [f"{ratio:.2f}" for ratio in (
                paint_ms / old_ms,
                max(0.0, paint_ms - floor_ms) / max(1.0, old_ms - floor_ms),
                chart_ms / statistics.median(old.chart),
            )]  # fmt: skip
        large = "  too large" if tree == "here" and size > LIMIT_BYTES.get(name, 1_000_000) else ""
        figures = f"{size / 1e6:7.2f}{paint_ms:10.0f}{cells[0]:>7}{cells[1]:>13}{chart_ms:10.0f}{cells[2]:>7}"
        print(f"{name:18}{tree:8}{figures}{large}")
    print(f"{FLOOR[0]:26}{'':7}{floor_ms:10.0f}")


def _option(name: str) -> str | None:
    given = dict(word.split("=", 1) for word in sys.argv if word.startswith("--") and "=" in word)
    return given.get(name)


def _record_runs(folder: Path) -> dict[str, Path]:
    """The runs that are there, and those that have to be recorded first."""
    shared = Path(os.environ.get("DETSCOPE_RECORDED", Path(__file__).parents[2] / "shared" / "data"))
    wanted = {
        "demo": "train tiny_maskrcnn --steps 20 --level ops --memory",
        "many modules": f"train {MANY_MODULES}",
    }
    if (shared / TRACE).exists():
        wanted["V100 trace"] = f"import {shared / TRACE}"
    runs = {}
    for name, command in wanted.items():
        home = folder / name.replace(" ", "-")
        if not (home / "latest").exists():
            words = [sys.executable, "-m", "detscope", *command.split(), "--out", str(home)]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        runs[name] = (home / "latest").resolve()
    nodes = pl.read_parquet(runs["many modules"] / "nodes*.parquet")
    print(f"many modules: {nodes.filter(pl.col('kind') == 'module').height}")
    home = folder / "steps"
    runs["100,000 steps"] = (home / "latest").resolve() if home.exists() else _generate_steps(home)
    return runs


def _generate_steps(parent: Path) -> Path:
    """A run of very many steps, with content and losses; nobody wants to wait for a real one."""
    generator = np.random.default_rng(0)
    info: dict[str, Any] = {
        "device": "cpu",
        "level": "phases",
        "batch_size": 2,
        "model": {"name": "generated"},
    }
    writer = RunWriter(parent, "train", "generated", info)
    numbers = np.arange(STEPS)
    modes = np.where(numbers < 3, "warmup", np.where(numbers % 5 == 0, "bare", "recorded"))
    factors = np.exp(generator.normal(0, 0.03, STEPS))
    for phase, ms in {**PHASES_MS, "step": sum(PHASES_MS.values())}.items():
        columns: dict[str, Any] = dict.fromkeys(TABLES["steps"])
        columns |= {"step": numbers, "epoch": np.zeros(STEPS, dtype=int), "mode": modes}
        columns |= {"phase": [phase] * STEPS, "start_ns": numbers * 10**8}
        columns |= {"wall_ns": (ms * 1e6 * factors).astype(int), "device_ns": [None] * STEPS}
        writer.append_frame("steps", pl.DataFrame(columns, schema=polars_schema("steps")))
    writer.append_rows(
        "content",
        [
            (int(s), 2, int(s % 7), 1000, 1200 + int(s % 3), 100, 50, None, None, 0, False, "")
            for s in numbers
        ],
    )
    writer.append_rows("losses", [(int(s), "loss", 1.0 / (1 + s)) for s in numbers])
    writer.close_run("ok", None)
    return writer.folder


def _write_page(run: Path, tree: Path, page: Path) -> Path:
    # an older tree may need packages that this one does not: they stand on PYTHONPATH
    path = os.pathsep.join([str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", WRITE, str(run), str(page)], check=True, env=environment)
    return page


def _measure_times(pages: dict[Key, Path]) -> dict[Key, OpeningTimes]:
    """Each page in a browser context of its own, in turn, so that all trees meet the same machine."""
    from playwright.sync_api import sync_playwright

    found = {key: OpeningTimes([], []) for key in pages}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(find_browser()), args=["--no-sandbox"])
        for _ in range(ROUNDS):
            for key, path in pages.items():
                context = browser.new_context(viewport={"width": 1280, "height": 800})
                context.add_init_script(CHART)
                opened = context.new_page()
                opened.goto(path.as_uri())
                while not (times := opened.evaluate(PAINT)):  # the page's policy lets nobody wait inside it
                    opened.wait_for_timeout(20)
                found[key].paint.extend(times)
                while key != FLOOR and (drawn_ms := opened.evaluate(CHARTED)) is None:
                    opened.wait_for_timeout(20)
                found[key].chart.extend([drawn_ms] if key != FLOOR else [])
                context.close()
        browser.close()
    return found
