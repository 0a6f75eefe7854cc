"""Two ranks, the second slowed by 100 ms in its forward: by how much it is named, whoever starts them.

The script `tests/e2e/straggling.py` all-reduces its losses by hand. Without the slowing nobody may be named.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SLOW_MS, WITHIN_MS = 100.0, 10.0
STEPS = 60
SCRIPT = Path(__file__).parents[1] / "tests" / "e2e" / "straggling.py"
RECORD = ["-m", "detscope", "run", "-q", "--json", "figures.json", str(SCRIPT), f"--steps={STEPS}"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def main() -> None:
    """Every start, with and without a wrapper, slowed and not."""
    print("two ranks: who is named, and the excess (aim: rank 1, 100 +- 10 ms; nobody without the slowing)")
    wrong = 0
    for start in ("env", "spawn", "file"):
        for gradients in ("wrapper", "hand"):
            for slow_ms in (SLOW_MS, 0.0):
                held = _held(start, f"--gradients={gradients}", f"--slow-ms={slow_ms}")
                right = held["rank"] is None
                if slow_ms:
                    right = held["rank"] == 1 and abs(held["excess_ms"] - SLOW_MS) <= WITHIN_MS
                wrong += not right
                low, high = held["excess_ci95"] or (float("nan"), float("nan"))
                print(
                    f"  {start:<6} {gradients:<8} slowed by {slow_ms:>5.0f} ms: rank {held['rank']!s:<5}"
                    f" {held['excess_ms']:7.1f} ms [{low:.1f}, {high:.1f}]{'' if right else '  WRONG'}",
                    flush=True,
                )
    if wrong:
        sys.exit(1)


def _held(start: str, *arguments: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="straggler-") as name:
        folder = Path(name)
        meet = [f"--start={start}", f"--store={folder / 'store'}", *arguments]
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        commands = {
            "env": [[*TORCHRUN, *RECORD, *meet]],
            "spawn": [[sys.executable, *RECORD, *meet]],
            "file": [[sys.executable, *RECORD, *meet, f"--rank={rank}"] for rank in (0, 1)],
        }[start]
        quiet = subprocess.DEVNULL
        children = [subprocess.Popen(one, cwd=folder, env=variables, stdout=quiet) for one in commands]
        codes = [child.wait() for child in children]
        if any(codes):
            sys.exit(f"the ranks failed: {commands}")
        found: dict[str, Any] = json.loads((folder / "figures.json").read_text())["ranks"]["straggler"]
        return found
