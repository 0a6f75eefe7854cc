"""What the census costs: measured steps of a script with and without it, in turns, and a counted step.

Steps of the census are apart from measured ones, so the step times that two runs state have to be the same;
how much longer a counted step takes is told beside it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl

from bench.run_script import COMMON, LOOP
from bench.sidebyside import ratio

PAIRS = 8
STEPS = 40


def main() -> None:
    """Record in turns and print both ratios."""
    plain: list[float] = []
    counted: list[float] = []
    slower: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "train.py"
        script.write_text(COMMON + LOOP)
        for turn in range(PAIRS):
            for census in (False, True) if turn % 2 else (True, False):
                steps = _record(script, folder / f"{turn}{census}", census)
                middle = statistics.median(steps["recorded"])
                (counted if census else plain).append(middle)
                if census:
                    slower.append(statistics.median(steps["census"]) / middle)
    print(f"recorded steps with a census against without: {ratio({'c': counted, 'p': plain}, 'c', 'p')}")
    print(f"a counted step takes {statistics.median(slower):.1f} times a recorded one")


def _record(script: Path, out: Path, census: bool) -> dict[str, list[float]]:
    """Seconds of steps by their mode, as the run states them."""
    command = [sys.executable, "-m", "detscope", "run", "-q", "--out", str(out)]
    arguments = [str(script), str(out.with_suffix(".json")), str(STEPS), "0", "0"]
    subprocess.run([*command, *["--census"] * census, *arguments], check=True, cwd=script.parent)
    table = pl.concat([pl.read_parquet(one) for one in out.rglob("steps.parquet")])
    whole = table.filter(pl.col("phase") == "step")
    return {
        mode: [ns / 1e9 for ns in whole.filter(pl.col("mode") == mode)["wall_ns"]]
        for mode in ("recorded", "census")
    }
