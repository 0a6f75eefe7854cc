"""`compare` on real runs: twenty equal pairs (false alarms), and a planted 5 ms (found, and where)."""

from __future__ import annotations

import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from detscope.analyze.compare.gate import parse_gate
from detscope.analyze.compare.runs import compare_runs
from detscope.config.schema import Settings
from detscope.runs.reader import Run, load_run

PLANTED = Path(__file__).parents[1] / "tests" / "sessions" / "planted.py"
PAIRS, STEPS = 20, 24


class _Silence:
    def start(self, total: int | None, label: str) -> None: ...
    def advance(self, n: int = 1, **info: object) -> None: ...
    def note(self, text: str) -> None: ...
    def finish(self) -> None: ...


def _run(factory: str, out: str) -> Run:
    from detscope.sessions.train.training import run_training

    settings = Settings.model_validate(
        {
            "model": {"name": f"{PLANTED}:{factory}"},
            "data": {"images": 16, "image_width": 160, "image_height": 128, "root": f"{out}/data"},
            "training": {"steps": STEPS, "threads": 1, "num_workers": 0},
            "record": {"telemetry_hz": 0.0, "traced_steps": 0},
            "output": {"runs": out},
        }
    )
    return load_run(run_training(settings, progress=_Silence()))


def _tuned(out: str) -> None:
    """A slow data set: what tuning promised, and what it measured."""
    from planted import open_slow

    from detscope.data.registry import register_dataset
    from detscope.sessions.tune import run_tuning

    register_dataset("slow", "a slow disk", open_slow)
    settings = Settings.model_validate(
        {
            "model": {"name": "tiny_ssd"},
            "data": {"name": "slow", "images": 16, "root": f"{out}/data"},
            "training": {"steps": 16, "threads": 1, "num_workers": 0},
            "output": {"runs": out},
        }
    )
    result = run_tuning(settings, budget_s=120, progress=_Silence())
    for row in result.tried:
        gains = [row.estimated_gain, row.measured_gain]
        shown = ["n/a" if gain is None else f"{gain:.1%}" for gain in gains]
        told = f"estimated {shown[0]}, measured {shown[1]}, {row.verdict}"
        print(f"  tune, slow data set: {row.title}: {told}")


def main() -> None:
    """Print how often equal runs were told apart, and what was said about the planted slowdown."""
    sys.path.insert(0, str(PLANTED.parent))
    gate = parse_gate("step_p50 > +5%")
    with tempfile.TemporaryDirectory() as out:
        runs = [_run("detector", out) for _ in range(PAIRS + 1)]
        results = [compare_runs(first, [second], [gate]) for first, second in pairwise(runs)]
        told = [result.comparisons[0].step.verdict for result in results]
        alarms = sum(word in ("slower", "faster") for word in told)
        failed = sum(bool(result.failed) for result in results)
        print(f"compare: {PAIRS} pairs of equal runs of {STEPS} steps")
        print(f"  told apart     {alarms}  {'holds' if alarms <= 1 else 'MISSED'} (aim at most 1)")
        print(f"  gate '+5%' failed {failed}")
        changed = compare_runs(runs[-1], [_run("sleepy", out)], [gate])
        one = changed.comparisons[0]
        print(f"  planted 5 ms in roi_heads.box_head: {one.verdict}")
        _tuned(out)
        print(f"  first module: {one.modules[0].path}; gate failed: {bool(changed.failed)}")
