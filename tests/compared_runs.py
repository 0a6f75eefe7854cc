"""Runs with made-up times, for tests that compare them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from detscope.runs.reader import Run, load_run
from detscope.runs.writer import RunWriter

MODULES = {"backbone": 30.0, "rpn": 10.0, "roi_heads.box_head": 8.0, "roi_heads.box_predictor": 2.0}


def make_run(
    parent: Path,
    seed: int,
    slower: Mapping[str, float] | None = None,
    steps: int = 40,
    info: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
    same_images: bool = True,
) -> Run:
    """A finished run of four modules, some of them slower by so many ms."""
    slower = slower or {}
    writer = RunWriter(parent, "train", "small", {"device": "cpu", "level": "modules", **(info or {})})
    generator = np.random.default_rng(seed)
    factors = np.exp(generator.normal(0, 0.03, steps)) * (1 + 0.03 * np.sin(np.arange(steps) / 7 + seed))
    for step in range(steps):
        times = {
            name: (mean * factors[step] * generator.uniform(0.98, 1.02) + slower.get(name, 0.0))
            for name, mean in MODULES.items()
        }
        forward = int(sum(times.values()) * 1e6)
        rows = [("step", forward + 1_000_000), ("forward", forward), ("other", 1_000_000)]
        writer.append_rows("steps", [(step, 0, "recorded", p, step * 10**8, ns, None) for p, ns in rows])
        writer.append_rows(
            "spans",
            [
                (
                    step,
                    "module",
                    (rename or {}).get(n, n),
                    "forward",
                    1,
                    int(ms * 1e6),
                    int(ms * 1e6),
                    None,
                    None,
                )
                for n, ms in times.items()
            ]
            + [
                (step, "stage", n.split(".")[0], "forward", 1, int(ms * 1e6), int(ms * 1e6), None, None)
                for n, ms in times.items()
            ],
        )
        ids = str(step) if same_images else f"{seed}-{step}"
        writer.append_rows("content", [(step, 2, 5, 100, 100, 0, None, None, None, 0, False, ids)])
    writer.append_rows(
        "nodes", [("module", (rename or {}).get(n, n), "Linear", n, 10 * i) for i, n in enumerate(MODULES)]
    )
    writer.close_run("ok")
    return load_run(writer.folder)
