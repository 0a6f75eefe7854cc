"""Device use by step, and by phase, stage, module and direction of the code that launched the work.

Work belongs to the part that launched it. Idle time belongs to the part whose work ended the gap: the
device had been waiting for it. So the use of a part is busy / (busy + idle before its work).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from detscope.analyze.device.idle import CAUSES, IdlePieces
from detscope.analyze.device.intervals import grouped_union, measure_overlap
from detscope.analyze.device.timeline import Timeline, event_borders
from detscope.analyze.step.modules import ROOT

PARTS = ("phase", "stage", "module", "direction", "operator")
MOST_ROWS = 200
DEFINITION = (
    "kernels_ns: length of the union of the kernels that the part launched; idle_ns: idle time that ended"
    " with an event of this part; use: kernels_ns / (busy_ns + idle_ns), busy_ns counting copies too; _ms and"
    " launches: per step where there are steps, else in all"
)


def step_rows(line: Timeline, pieces: IdlePieces) -> list[dict[str, Any]]:
    """Utilisation and idle causes of every step."""
    steps = line.steps
    lengths = steps.ends - steps.starts
    kernels = measure_overlap(line.kernels, steps.starts, steps.ends)
    busy = measure_overlap(line.busy, steps.starts, steps.ends)
    copies = measure_overlap(line.copies, steps.starts, steps.ends)
    idle = pieces.sum_by_step(len(steps))
    rows = []
    for index in range(len(steps)):
        rows.append(
            {
                "rank": line.rank,
                "device": line.device,
                "step": int(steps.numbers[index]),
                "window_ns": int(lengths[index]),
                "host_ns": int(steps.host_ends[index] - steps.host_starts[index]),
                "kernels_ns": int(kernels[index]),
                "with_copies_ns": int(busy[index]),
                "copies_ns": int(copies[index]),
                "kernels": int(kernels[index]) / int(lengths[index]) if lengths[index] else None,
                "with_copies": int(busy[index]) / int(lengths[index]) if lengths[index] else None,
                "idle_ns": idle[index],
            }
        )
    return rows


def part_rows(
    lines: Sequence[Timeline], idle: Sequence[IdlePieces], part: str, steps: int
) -> list[dict[str, Any]]:
    """Use by one kind of part over all devices; work that belongs to none is a row with the name None."""
    merged: dict[str | None, dict[str, int]] = {}
    for line, pieces in zip(lines, idle, strict=True):
        for name, row in _of_one(line, pieces, part).items():
            total = merged.setdefault(name, dict.fromkeys(row, 0))
            for key, value in row.items():
                total[key] += value
    if set(merged) <= {None}:
        return []
    rows: list[dict[str, Any]] = []
    for name, row in merged.items():
        whole = row["busy_ns"] + row["idle_ns"]
        use = row["kernels_ns"] / whole if whole else None
        shown = {f"{key}_ms": row[f"{key}_ns"] / 1e6 / (steps or 1) for key in ("kernels", "busy", "idle")}
        launches = row["kernels"] / (steps or 1)
        rows.append({"name": name, **row, "use": use, **shown, "launches": launches})
    rows.sort(key=lambda row: (-(row["busy_ns"] + row["idle_ns"]), str(row["name"])))
    return rows[:MOST_ROWS]


def _of_one(line: Timeline, pieces: IdlePieces, part: str) -> dict[str | None, dict[str, int]]:
    # the root's path is empty; an empty stage, phase or operator is none
    named = pl.col(part).replace("", ROOT if part == "module" else None)
    events = line.events.select("kind", "start_ns", "wall_ns", named)
    numbered = events.select(part).unique(maintain_order=True).with_row_index("group")
    numbered = numbered.with_columns(pl.col("group").cast(pl.Int64))
    events = events.join(numbered, on=part, how="left", nulls_equal=True, maintain_order="left")
    names = dict(numbered.select("group", part).iter_rows())
    kernels = events.filter(pl.col("kind") == "kernel")
    kernel_ns = grouped_union(*event_borders(kernels), kernels["group"].to_numpy(), line.window)
    busy_ns = grouped_union(*event_borders(events), events["group"].to_numpy(), line.window)
    counts = dict(kernels.group_by("group").len().iter_rows())
    sums = dict(kernels.group_by("group").agg(pl.col("wall_ns").sum()).iter_rows())
    working = events.filter(pl.col("wall_ns") > 0)["group"].to_numpy()
    ended = pieces.ender >= 0
    owner = working[pieces.ender[ended]]
    idle = np.zeros((len(CAUSES), len(names) + 1), np.int64)
    data = CAUSES.index("data")
    np.add.at(idle, (pieces.cause[ended], owner), (pieces.lengths - pieces.data_ns)[ended])
    np.add.at(idle, (np.full(len(owner), data), owner), pieces.data_ns[ended])
    return {
        name: {
            "kernels": counts.get(group, 0),
            "kernel_time_ns": sums.get(group, 0),
            "kernels_ns": kernel_ns.get(group, 0),
            "busy_ns": busy_ns.get(group, 0),
            "idle_ns": int(idle[:, group].sum()),
            **{f"idle_{cause}_ns": int(idle[number, group]) for number, cause in enumerate(CAUSES)},
        }
        for group, name in names.items()
    }
