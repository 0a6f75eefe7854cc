"""The page: how large it is and when its first figures are painted, here and in an older tree.

    python -m bench page [--before=FOLDER_OF_AN_OLDER_TREE] [--runs=FOLDER]

Both trees make their page of the same four runs; a browser without a window opens them in turn. `--runs`
keeps the runs, so that a second call need not record them again. Sizes are those of the file; first paint is
the browser's own `first-contentful-paint`, the median of several openings.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
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


def main() -> None:
    """Sizes and first paints, and their ratio where there is an older tree."""
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
        paints = _measure_paints(pages)
        print(f"\n{'run':28}{'tree':8}{'MB':>8}{'first paint ms':>16}{'ratio':>8}")
        for name in runs:
            for tree in trees:
                page, ms = pages[name, tree], statistics.median(paints[name, tree])
                ratio = ms / statistics.median(paints[name, "before"]) if "before" in trees else None
                told = f"{ratio:8.2f}" if ratio is not None and tree == "here" else ""
                size = page.stat().st_size
                large = "  too large" if tree == "here" and size > LIMIT_BYTES.get(name, 1_000_000) else ""
                print(f"{name:28}{tree:8}{size / 1e6:8.2f}{ms:16.0f}{told}{large}")


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
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    subprocess.run([sys.executable, "-c", WRITE, str(run), str(page)], check=True, env=environment)
    return page


def _measure_paints(pages: dict[tuple[str, str], Path]) -> dict[tuple[str, str], list[float]]:
    """Each page in a browser context of its own, in turn, so that all trees meet the same machine."""
    from playwright.sync_api import sync_playwright

    found: dict[tuple[str, str], list[float]] = {key: [] for key in pages}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(find_browser()), args=["--no-sandbox"])
        for _ in range(ROUNDS):
            for key, path in pages.items():
                context = browser.new_context(viewport={"width": 1280, "height": 800})
                opened = context.new_page()
                opened.goto(path.as_uri())
                while not (times := opened.evaluate(PAINT)):  # the page's policy lets nobody wait inside it
                    opened.wait_for_timeout(20)
                found[key] += times
                context.close()
        browser.close()
    return found
