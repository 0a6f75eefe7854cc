"""Several ranks: phases of each, time in collectives and how much of it is hidden, who holds the others up.

Definitions. A collective runs from the moment this rank handed its part over to the moment the result was
back. Hidden is what of it ran while the rank had something else to do: before the last bucket was handed
over, or before the program waited for a collective of its own. The rest is exposed; an exchange of buffers
before forward is exposed as a whole. Work is a step's wall time without what was exposed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from detscope.analyze.ranks.collectives import StepCollectives, read_device_collectives
from detscope.analyze.ranks.straggler import imbalance, own_phase_ms, straggler
from detscope.analyze.ranks.collectives import Meetings, find_last_arrivals, read_collectives, sum_waits
from detscope.analyze.stats import median_interval, percent
from detscope.analyze.step.columns import mean, median, total
from detscope.analyze.step.steps import PHASES, TypicalSteps
from detscope.runs.reader import Run

DEFINITIONS = {
    "communication": "from handing a bucket over, or calling a collective, until the result was back; unions"
    " per step",
    "hidden_share": "part of the communication that ran before the last bucket was handed over, while"
    " backward still computed, or before the program waited for a collective of its own; of recorded"
    " devices: that ran beside other kernels",
    "exposed": "communication that is not hidden; the exchange of buffers before forward is all exposed",
    "wait_for_others": "part of the exposed communication before the last rank came to it",
    "work": "wall time of a step without exposed communication",
    "lost": "mean over steps of the longest work minus the mean work of all ranks",
    "scaling_efficiency": "images/s of all ranks over the number of ranks times images/s of one rank alone",
}


def add_ranks(summary: dict[str, Any], run: Run, typical: TypicalSteps) -> None:
    """Put the figures of several ranks into the summary; nothing for a run of one."""
    steps = run.table("rank_steps")
    if steps.height == 0:
        return
    about = run.info.get("ranks") or _recorded_elsewhere(run, steps)
    chosen = common_steps(steps, typical)
    content = run.table("rank_content")
    talks = read_collectives(run.table("communication"), chosen) or read_device_collectives(run, chosen)
    rows = rank_rows(steps, content, talks, chosen, about.get("members") or [])
    summary["ranks"] = about.get("count")
    summary["rank_rows"] = rows
    summary["communication"] = communication_figures(talks, steps, run.table("communication"), chosen)
    summary["straggler"] = straggler(rows, work_by_step(steps, talks, chosen))
    summary["imbalance"] = imbalance(content, chosen)
    summary["scaling"] = scaling(rows, run.info.get("one_rank"))
    summary["clocks"] = clocks(about.get("members") or [])
    summary["agreement"] = run.info.get("agreement")
    summary["rank_definitions"] = DEFINITIONS
    if summary["scaling"]["images_per_s"] is not None:
        summary["images_per_s"] = summary["scaling"]["images_per_s"]
    if summary["straggler"].get("rank") is not None and summary.get("verdict"):
        own = _in_collectives(rows[0]) or f"on rank 0 {summary['verdict']}"
        summary["verdict"] = f"{summary['straggler']['why']}; {own}"
    summary["notes"] = [*summary.get("notes", []), *_missing(about)]


def _recorded_elsewhere(run: Run, steps: pl.DataFrame) -> dict[str, Any]:
    """Ranks of files that other tools wrote: one file each."""
    sources = run.info.get("sources") or []
    members = [{"rank": source.get("rank"), "run": source.get("file")} for source in sources]
    return {"count": steps["rank"].n_unique(), "members": members}


def _missing(about: Mapping[str, Any]) -> list[str]:
    return [f"rank {rank} delivered nothing: figures are without it" for rank in about.get("missing") or ()]


def _in_collectives(row: Mapping[str, Any]) -> str | None:
    """What is said of a rank that spends more time in collectives than in any phase of its own."""
    exposed_ms, step_ms = row.get("exposed_ms"), row.get("mean_step_ms")
    own = [own_phase_ms(row, phase) or 0.0 for phase in PHASES]
    if not exposed_ms or not step_ms or exposed_ms < max(own):
        return None
    words = f"rank {row['rank']} spends {percent(exposed_ms / step_ms)} of its step in collectives"
    waits_ms = row.get("wait_for_others_ms")
    return words if waits_ms is None else f"{words}, {percent(waits_ms / step_ms)} waiting for others"


def common_steps(steps: pl.DataFrame, typical: TypicalSteps) -> list[int]:
    """Typical steps of rank 0 that every rank recorded."""
    whole = steps.filter((pl.col("phase") == "step") & pl.col("step").is_in(typical.steps))
    ranks = steps["rank"].n_unique()
    counts = whole.group_by("step").agg(pl.col("rank").n_unique().alias("ranks"))
    return sorted(counts.filter(pl.col("ranks") == ranks)["step"].to_list())


def rank_rows(
    steps: pl.DataFrame,
    content: pl.DataFrame,
    talks: Mapping[tuple[int, int], StepCollectives],
    chosen: Sequence[int],
    members: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Each rank's step: phases that add up to its median, work, collectives, content."""
    about = {member.get("rank"): member for member in members}
    latest = find_last_arrivals(talks)
    rows = []
    for rank in sorted(steps["rank"].unique().to_list()):
        own = steps.filter((pl.col("rank") == rank) & pl.col("step").is_in(list(chosen)))
        rows.append(
            {
                "rank": rank,
                **{
                    key: about.get(rank, {}).get(key) for key in ("host", "device", "status", "reason", "run")
                },
                "last_loss": about.get(rank, {}).get("last_loss"),
                **_step_figures(own),
                **_talk_figures(talks, rank, chosen, latest),
                **_content_figures(content.filter(pl.col("rank") == rank), chosen),
            }
        )
        row = rows[-1]
        row["work_ms"] = None if row["step_ms"] is None else row["mean_step_ms"] - (row["exposed_ms"] or 0.0)
    return rows


def _step_figures(own: pl.DataFrame) -> dict[str, Any]:
    walls = [ns / 1e6 for ns in own.filter(pl.col("phase") == "step").sort("step")["wall_ns"].to_list()]
    interval = median_interval(walls)
    whole, middle = sum(walls), median(walls)
    phases = {}
    for phase in PHASES:
        spent = total(own.filter(pl.col("phase") == phase)["wall_ns"]) / 1e6
        phases[phase] = spent / whole * middle if whole and middle is not None else None
    return {
        "steps": len(walls),
        "step_ms": middle,
        "ci95": [interval.low, interval.high] if interval else None,
        "mean_step_ms": whole / len(walls) if walls else None,
        "phases_ms": phases,
    }


def _talk_figures(
    talks: Mapping[tuple[int, int], StepCollectives],
    rank: int,
    chosen: Sequence[int],
    latest: Meetings,
) -> dict[str, Any]:
    """Means per step; None where no collective was recorded."""
    spoken = [talks[rank, step] for step in chosen if (rank, step) in talks]
    if not spoken:
        return dict.fromkeys(
            ("communication_ms", "exposed_ms", "hidden_share", "wait_for_others_ms", "exposed_by_phase_ms")
        )
    busy, exposed = (sum(one.busy_ns for one in spoken), sum(one.exposed_ns for one in spoken))
    by_phase = {
        phase: sum(one.exposed.get(phase, 0) for one in spoken) / len(spoken) / 1e6 for phase in PHASES
    }
    waits = [sum_waits(talk, latest) for talk in spoken]
    return {
        "communication_ms": busy / len(spoken) / 1e6,
        "exposed_ms": exposed / len(spoken) / 1e6,
        "hidden_share": 1 - exposed / busy if busy else None,
        "wait_for_others_ms": sum(waits) / len(waits) / 1e6 if latest else None,
        "exposed_by_phase_ms": by_phase,
    }


def _content_figures(own: pl.DataFrame, chosen: Sequence[int]) -> dict[str, Any]:
    rows = own.filter(pl.col("step").is_in(list(chosen)))
    return {
        f"{what}_per_step": mean(rows[what].drop_nulls())
        for what in ("images", "boxes", "pixels", "proposals")
    }


def work_by_step(
    steps: pl.DataFrame, talks: Mapping[tuple[int, int], StepCollectives], chosen: Sequence[int]
) -> dict[int, dict[int, float]]:
    """Work of every rank in every step, ms: step -> rank -> ms."""
    whole = steps.filter((pl.col("phase") == "step") & pl.col("step").is_in(list(chosen)))
    found: dict[int, dict[int, float]] = {}
    for rank, step, wall_ns in whole.select("rank", "step", "wall_ns").iter_rows():
        talk = talks.get((rank, step))
        found.setdefault(step, {})[rank] = (wall_ns - (talk.exposed_ns if talk else 0)) / 1e6
    return found


def communication_figures(
    talks: Mapping[tuple[int, int], StepCollectives],
    steps: pl.DataFrame,
    communication: pl.DataFrame,
    chosen: Sequence[int],
) -> dict[str, Any]:
    """Time in collectives of all ranks together, as shares of their steps."""
    if not talks:
        return {"share": None, "hidden_share": None, "why": "no collective was recorded"}
    whole = steps.filter((pl.col("phase") == "step") & pl.col("step").is_in(list(chosen)))
    wall = total(whole["wall_ns"])
    busy = sum(talk.busy_ns for talk in talks.values())
    exposed = sum(talk.exposed_ns for talk in talks.values())
    latest = find_last_arrivals(talks)
    waited = sum(sum_waits(talk, latest) for talk in talks.values()) if latest else None
    count = len(talks)
    sent = communication.filter(pl.col("step").is_in(list(chosen)) & (pl.col("kind") == "gradients"))
    return {
        "share": busy / wall if wall else None,
        "hidden_share": 1 - exposed / busy if busy else None,
        "exposed_share": exposed / wall if wall else None,
        "wait_share": waited / wall if wall and waited is not None else None,
        "ms": busy / count / 1e6,
        "exposed_ms": exposed / count / 1e6,
        "wait_for_others_ms": None if waited is None else waited / count / 1e6,
        "buckets": sent["bucket"].n_unique() or None,
        "bytes_per_step": total(sent["bytes"]) / count if sent.height else None,
        "n": count,
    }


def scaling(rows: Sequence[Mapping[str, Any]], alone: Any) -> dict[str, Any]:
    """Images/s of all ranks, and against one rank alone where such a run is known."""
    per_step = [row.get("images_per_step") for row in rows]
    longest = max((row["step_ms"] for row in rows if row.get("step_ms")), default=None)
    known = [images for images in per_step if images is not None]
    speed = sum(known) / longest * 1e3 if longest and len(known) == len(rows) else None
    found: dict[str, Any] = {"images_per_s": speed, "efficiency": None, "one_rank": alone}
    one_speed = alone.get("images_per_s") if isinstance(alone, Mapping) else None
    if speed is None:
        found["why"] = "images per step are not known of every rank"
    elif not one_speed:
        found["why"] = "no run of one rank with these settings lies beside this one"
    else:
        found["efficiency"] = speed / (len(rows) * one_speed)
    return found


def clocks(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How ranks were put on one clock and how wrong that can be."""
    others = [member for member in members if member.get("rank") != 0]
    errors = [member["clock_error_ns"] for member in others if member.get("clock_error_ns") is not None]
    known = len(errors) == len(others) and bool(others)
    return {
        "one_clock": all(member.get("one_clock") for member in others) if others else None,
        "error_us": max(errors) / 1e3 if known else None,
        "why": None if known else "clocks of some ranks were not compared",
    }
