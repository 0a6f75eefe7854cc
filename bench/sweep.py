"""What sweeping itself costs: beyond process start and import, and one process against many."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from bench.sidebyside import Ratio, verdict
from detscope.report.sweep_progress import SweepLines
from detscope.sessions.sweep import SweepOptions, run_sweep
from detscope.sweep.plan import load_plan
from detscope.sweep.store import read_rows

LONG_TRIALS, LONG_SECONDS = 6, 10.0
SHORT_TRIALS, SHORT_SECONDS = 50, 1.0
_SLEEPER = """
import sys, time
from detscope.sweep.trial import serve_requests
def work(request):
    time.sleep(float({seconds}))
    return {{"step_ms": 1.0}}
serve_requests(work)
"""


def sweep_seconds(folder: Path, text: str, isolation: str, command: tuple[str, ...] | None = None) -> float:
    """Wall seconds of a whole sweep."""
    path = folder / "plan.toml"
    path.write_text(text, encoding="utf-8")
    (folder / "plan.db").unlink(missing_ok=True)
    more = {} if command is None else {"command": command}
    options = SweepOptions(isolation=isolation, **more)  # type: ignore[arg-type]
    start = perf_counter()
    found = run_sweep(load_plan(path), options, SweepLines(quiet=True))
    assert found["failed"] == 0, found["last_failures"]
    return perf_counter() - start


def overhead(folder: Path, trials: int, seconds: float) -> float:
    """Share of a trial that is the sweep's own: trials that only sleep, in processes that import nothing."""
    script = folder / "sleeper.py"
    script.write_text(_SLEEPER.format(seconds=seconds), encoding="utf-8")
    command = (sys.executable, str(script))
    batches = list(range(1, trials + 1))
    whole = sweep_seconds(
        folder, f'[axes]\nnetwork = "x"\ndevice = "cpu"\nbatch_size = {batches}\n', "process", command
    )
    return whole / (trials * seconds) - 1


def plan_of(trials: int, seconds: float) -> str:
    """A quick network measured for a given time, many times."""
    return (
        f"[sweep]\nrepetitions = {trials}\n[measure]\nmax_seconds = {seconds}\nmax_steps = 100000\n"
        'target_interval = 0.000001\n[axes]\nnetwork = "squeezenet1_1"\nimage_size = 64\nbatch_size = 2\n'
        'device = "cpu"\nthreads = 1\nstage = "inference"\nvariables = "latency"\n'
    )


def isolations(folder: Path, trials: int, seconds: float) -> dict[str, tuple[float, list[float]]]:
    """Wall seconds and the medians of all trials, for both ways."""
    found = {}
    for isolation in ("batch", "process"):
        wall = sweep_seconds(folder, plan_of(trials, seconds), isolation)
        found[isolation] = (wall, [row["step_ms"] for row in read_rows(folder / "plan.db")])
    return found


def main(scale: float = 1.0) -> None:
    """Print the table; `scale` below 1 tries it at a smaller size."""
    long, short = max(2, round(LONG_TRIALS * scale)), max(3, round(SHORT_TRIALS * scale))
    print("\nSweeping")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        share = overhead(folder, long, LONG_SECONDS)
        found = Ratio(1 + share, 1 + share, 1 + share)
        print(f"  {long} trials of {LONG_SECONDS:g} s: {100 * share:.2f} % on top  {verdict(found, 1.05)}")
        both = isolations(folder, short, SHORT_SECONDS)
        (batch, ours), (process, theirs) = both["batch"], both["process"]
        ratio = process / batch
        words = "holds (aim 3)" if ratio >= 3 else "MISSED (aim 3)"
        print(f"  {short} trials of {SHORT_SECONDS:g} s: process / batch {ratio:.2f}  {words}")
        spreads = [statistics.quantiles(values, n=4) for values in (ours, theirs)]
        noise = max((high - low) / middle for low, middle, high in spreads)
        apart = statistics.median(ours) / statistics.median(theirs) - 1
        agree = "within noise" if abs(apart) <= max(noise, 0.02) else "APART"
        print(f"  medians of batch and process: {100 * apart:+.1f} % ({agree}: {100 * noise:.1f} %)")
