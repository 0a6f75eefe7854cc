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

from detscope.analyze.device.utilisation import divide_safely
from detscope.analyze.figure import Figure
from detscope.analyze.ranks.collectives import (
    CollectivesByStep,
    find_last_arrivals,
    read_collectives,
    read_device_collectives,
    sum_collectives,
)
from detscope.analyze.ranks.straggler import (
    Imbalance,
    RankFigures,
    RankPhase,
    Straggler,
    find_straggler,
    measure_imbalance,
)
from detscope.analyze.stats import median_interval, percent
from detscope.analyze.step.columns import mean, median, total
from detscope.analyze.step.steps import PHASES, TypicalSteps
from detscope.runs.reader import Run


class RankDefinitions(Figure, frozen=True, kw_only=True):
    """What the figures of several ranks mean."""

    communication: str = (
        "from handing a bucket over, or calling a collective, until the result was back; unions per step"
    )
    hidden_share: str = (
        "part of the communication that ran before the last bucket was handed over, while"
        " backward still computed, or before the program waited for a collective of its own; of recorded"
        " devices: that ran beside other kernels"
    )
    exposed: str = "communication that is not hidden; the exchange of buffers before forward is all exposed"
    wait_for_others: str = "part of the exposed communication before the last rank came to it"
    work: str = "wall time of a step without exposed communication"
    lost: str = "mean over steps of the longest work minus the mean work of all ranks"
    scaling_efficiency: str = (
        "images/s of all ranks over the number of ranks times images/s of one rank alone"
    )


class RankCommunication(Figure, frozen=True, kw_only=True):
    """Time in collectives of all ranks together."""

    share: float | None = None  # of the steps
    hidden_share: float | None = None  # of the communication
    exposed_share: float | None = None  # of the steps
    wait_share: float | None = None  # of the steps
    ms: float | None = None  # per rank and step, as are the two that follow
    exposed_ms: float | None = None  # what nothing hid
    wait_for_others_ms: float | None = None  # of the exposed, before the last rank came
    buckets: int | None = None  # of gradients
    bytes_per_step: float | None = None  # of gradients
    n: int = 0  # steps of ranks with collectives
    why: str | None = None  # why there are none


class OneRankSpeed(Figure, frozen=True, kw_only=True):
    """A run of one rank with the same settings."""

    run: str | None = None  # its folder
    images_per_s: float | None = None  # of that rank


class Scaling(Figure, frozen=True, kw_only=True):
    """Images/s of all ranks, and against one rank alone."""

    images_per_s: float | None  # of all ranks together
    efficiency: float | None = None  # against as many times one rank
    one_rank: OneRankSpeed | None = None
    why: str | None = None  # why there is no efficiency


class RankClocks(Figure, frozen=True, kw_only=True):
    """How ranks were put on one clock and how wrong that can be."""

    one_clock: bool | None  # all ranks read the same clock
    error_us: float | None  # at most
    why: str | None = None  # why it is not known


class RankAgreement(Figure, frozen=True, kw_only=True):
    """Whether all ranks have the same weights and the same loss at the end."""

    weights_equal: bool | None = None  # bit by bit
    loss_equal: bool | None = None  # of the same images
    losses: tuple[float | None, ...] = ()  # of the same images, rank by rank
    checksum: str | None = None  # of rank 0's weights
    how: str | None = None  # it was compared


class Ranks(Figure, frozen=True, kw_only=True):
    """All ranks of a run; steps, spans and everything made of them are rank 0's."""

    count: int | None  # how many
    rows: tuple[RankFigures, ...]
    communication: RankCommunication
    straggler: Straggler
    imbalance: Imbalance
    scaling: Scaling
    clocks: RankClocks
    agreement: RankAgreement | None
    missing: tuple[int, ...] = ()  # ranks that delivered nothing
    definitions: RankDefinitions = RankDefinitions()


def read_ranks(run: Run, typical: TypicalSteps) -> Ranks | None:
    """The figures of several ranks; None for a run of one."""
    steps, content, sent = (run.table(name) for name in ("rank_steps", "rank_content", "communication"))
    if steps.height == 0:
        return None
    about = run.info.get("ranks") or _recorded_elsewhere(run, steps)
    members = about.get("members") or []
    chosen = common_steps(steps, typical)
    collectives = read_collectives(sent, chosen) or read_device_collectives(run, chosen)
    rows = rank_figures(steps, content, collectives, chosen, members)
    told = run.info.get("agreement")
    return Ranks(
        count=about.get("count"),
        rows=rows,
        communication=communication_figures(collectives, steps, sent, chosen),
        straggler=find_straggler(rows, _work_by_step(steps, collectives, chosen)),
        imbalance=measure_imbalance(content, chosen),
        scaling=measure_scaling(rows, run.info.get("one_rank")),
        clocks=_compare_clocks(members),
        agreement=None
        if told is None
        else RankAgreement(
            weights_equal=told.get("weights_equal"),
            loss_equal=told.get("loss_equal"),
            losses=tuple(told.get("losses") or ()),
            checksum=told.get("checksum"),
            how=told.get("how"),
        ),
        missing=tuple(about.get("missing") or ()),
    )


def tell_straggler(ranks: Ranks, verdict: str) -> str:
    """The verdict on all ranks: who holds the others up comes first."""
    if ranks.straggler.rank is None:
        return verdict
    own = _tell_collectives(ranks.rows[0]) or f"on rank 0 {verdict}"
    return f"{ranks.straggler.why}; {own}"


def _recorded_elsewhere(run: Run, steps: pl.DataFrame) -> dict[str, Any]:
    """Ranks of files that other tools wrote: one file each."""
    sources = run.info.get("sources") or []
    members = [{"rank": source.get("rank"), "run": source.get("file")} for source in sources]
    return {"count": steps["rank"].n_unique(), "members": members}


def _tell_collectives(row: RankFigures) -> str | None:
    """What is said of a rank that spends more time in collectives than in any phase of its own."""
    longest_ms = max(phase.own_ms or 0.0 for phase in row.phases)
    if not row.exposed_ms or not row.mean_step_ms or row.exposed_ms < longest_ms:
        return None
    words = f"rank {row.rank} spends {percent(row.exposed_ms / row.mean_step_ms)} of its step in collectives"
    if row.wait_for_others_ms is None:
        return words
    return f"{words}, {percent(row.wait_for_others_ms / row.mean_step_ms)} waiting for others"


def common_steps(steps: pl.DataFrame, typical: TypicalSteps) -> list[int]:
    """Typical steps of rank 0 that every rank recorded."""
    whole = steps.filter((pl.col("phase") == "step") & pl.col("step").is_in(typical.steps))
    ranks = steps["rank"].n_unique()
    counts = whole.group_by("step").agg(pl.col("rank").n_unique().alias("ranks"))
    return sorted(counts.filter(pl.col("ranks") == ranks)["step"].to_list())


def rank_figures(
    steps: pl.DataFrame,
    content: pl.DataFrame,
    collectives: CollectivesByStep,
    chosen: Sequence[int],
    members: Sequence[Mapping[str, Any]],
) -> tuple[RankFigures, ...]:
    """Each rank's step: phases that add up to its median, work, collectives, content."""
    about = {member.get("rank"): member for member in members}
    latest = find_last_arrivals(collectives)
    content = content.filter(pl.col("step").is_in(list(chosen)))
    facts = ("host", "device", "status", "reason", "run", "last_loss")
    rows = []
    for rank in sorted(steps["rank"].unique().to_list()):
        own = steps.filter((pl.col("rank") == rank) & pl.col("step").is_in(list(chosen)))
        walls = [ns / 1e6 for ns in own.filter(pl.col("phase") == "step").sort("step")["wall_ns"].to_list()]
        whole, middle = sum(walls), median(walls)
        spoken = [collectives[rank, step] for step in chosen if (rank, step) in collectives]
        times = sum_collectives(spoken, latest)
        phases = []
        for phase in PHASES:
            spent = total(own.filter(pl.col("phase") == phase)["wall_ns"]) / 1e6
            exposed = sum(one.exposed.get(phase, 0) for one in spoken)
            phases.append(
                RankPhase(
                    name=phase,
                    ms=spent / whole * middle if whole and middle is not None else None,
                    exposed_ms=times.per_step_ms(exposed),
                )
            )
        inside = content.filter(pl.col("rank") == rank)
        mean_ms = whole / len(walls) if walls else None
        images = mean(inside["images"].drop_nulls())
        rows.append(
            RankFigures(
                rank=rank,
                **{key: about.get(rank, {}).get(key) for key in facts},
                steps=len(walls),
                step_ms=middle,
                ci95=median_interval(walls),
                mean_step_ms=mean_ms,
                phases=tuple(phases),
                work_ms=None if mean_ms is None else mean_ms - (times.per_step_ms(times.exposed_ns) or 0.0),
                communication_ms=times.per_step_ms(times.busy_ns),
                exposed_ms=times.per_step_ms(times.exposed_ns),
                hidden_share=times.hidden_share,
                wait_for_others_ms=times.per_step_ms(times.waited_ns),
                images_per_step=images,
                images_per_s=images / middle * 1e3 if images is not None and middle else None,
                boxes_per_step=mean(inside["boxes"].drop_nulls()),
                pixels_per_step=mean(inside["pixels"].drop_nulls()),
                proposals_per_step=mean(inside["proposals"].drop_nulls()),
            )
        )
    return tuple(rows)


def _work_by_step(
    steps: pl.DataFrame, collectives: CollectivesByStep, chosen: Sequence[int]
) -> dict[int, dict[int, float]]:
    """Work of every rank in every step, ms: step -> rank -> ms."""
    whole = steps.filter((pl.col("phase") == "step") & pl.col("step").is_in(list(chosen)))
    found: dict[int, dict[int, float]] = {}
    for rank, step, wall_ns in whole.select("rank", "step", "wall_ns").iter_rows():
        own = collectives.get((rank, step))
        found.setdefault(step, {})[rank] = (wall_ns - (own.exposed_ns if own else 0)) / 1e6
    return found


def communication_figures(
    collectives: CollectivesByStep, steps: pl.DataFrame, sent: pl.DataFrame, chosen: Sequence[int]
) -> RankCommunication:
    """Time in collectives of all ranks together, as shares of their steps."""
    if not collectives:
        return RankCommunication(why="no collective was recorded")
    whole = steps.filter((pl.col("phase") == "step") & pl.col("step").is_in(list(chosen)))
    wall = total(whole["wall_ns"])
    times = sum_collectives(list(collectives.values()), find_last_arrivals(collectives))
    gradients = sent.filter(pl.col("step").is_in(list(chosen)) & (pl.col("kind") == "gradients"))
    return RankCommunication(
        share=divide_safely(times.busy_ns, wall),
        hidden_share=times.hidden_share,
        exposed_share=divide_safely(times.exposed_ns, wall),
        wait_share=None if times.waited_ns is None else divide_safely(times.waited_ns, wall),
        ms=times.per_step_ms(times.busy_ns),
        exposed_ms=times.per_step_ms(times.exposed_ns),
        wait_for_others_ms=times.per_step_ms(times.waited_ns),
        buckets=gradients["bucket"].n_unique() or None,
        bytes_per_step=total(gradients["bytes"]) / times.n if gradients.height else None,
        n=times.n,
    )


def measure_scaling(rows: Sequence[RankFigures], alone: Mapping[str, Any] | None) -> Scaling:
    """Images/s of all ranks, and against one rank alone where such a run is known."""
    known = [row.images_per_step for row in rows if row.images_per_step is not None]
    longest = max((row.step_ms for row in rows if row.step_ms), default=None)
    speed = sum(known) / longest * 1e3 if longest and len(known) == len(rows) else None
    one = None if alone is None else OneRankSpeed(**{key: alone.get(key) for key in ("run", "images_per_s")})
    if speed is None:
        why = "images per step are not known of every rank"
    elif one is None or not one.images_per_s:
        why = "no run of one rank with these settings lies beside this one"
    else:
        efficiency = speed / (len(rows) * one.images_per_s)
        return Scaling(images_per_s=speed, efficiency=efficiency, one_rank=one)
    return Scaling(images_per_s=speed, one_rank=one, why=why)


def _compare_clocks(members: Sequence[Mapping[str, Any]]) -> RankClocks:
    others = [member for member in members if member.get("rank") != 0]
    errors = [member["clock_error_ns"] for member in others if member.get("clock_error_ns") is not None]
    known = len(errors) == len(others) and bool(others)
    return RankClocks(
        one_clock=all(member.get("one_clock") for member in others) if others else None,
        error_us=max(errors) / 1e3 if known else None,
        why=None if known else "clocks of some ranks were not compared",
    )
