"""Several ranks on a terminal: phases of each, who holds the others up, time in collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from detscope.report.figures import (
    CANNOT_TELL,
    cell,
    is_number,
    mapping,
    number,
    percent,
    plain,
    rows,
    with_unit,
)
from detscope.report.terminal_tables import figure_table

Summary = Mapping[str, Any]
_PHASES = ("data", "transfer", "forward", "backward", "optimizer", "other")
_SHOWN_RANKS = 32


def ranks_table(summary: Summary) -> Table | None:
    """One line per rank: its step by phases, and how long it waited for the others."""
    found = rows(summary, "rank_rows")
    if not found:
        return None
    title = f"Ranks, ms per step ({number(summary.get('ranks'), 0)})"
    table = figure_table(title, ["rank"], ["step", *_PHASES, "exposed", "hidden", "work"])
    for row in found[:_SHOWN_RANKS]:
        phases = mapping(row, "phases_ms")
        held = mapping(summary, "straggler").get("rank") == row.get("rank")
        table.add_row(
            cell(_name(row)),
            number(row.get("step_ms")),
            *(number(phases.get(phase)) for phase in _PHASES),
            number(row.get("exposed_ms")),
            percent(row.get("hidden_share")),
            number(row.get("work_ms")),
            style="yellow" if held else "",
        )
    return table


def _name(row: Mapping[str, Any]) -> str:
    return f"{row.get('rank')} {plain(row['host'])}" if row.get("host") else f"{row.get('rank')}"


def ranks_lines(summary: Summary) -> Iterator[tuple[str, str, str]]:
    """Straggler, collectives, balance, scaling, clocks, agreement."""
    if not rows(summary, "rank_rows"):
        return
    held = mapping(summary, "straggler")
    yield "straggler", plain(held.get("why") or CANNOT_TELL), "yellow" if held.get("rank") is not None else ""
    yield "collectives", _communication(mapping(summary, "communication")), ""
    if balance := _balance(mapping(summary, "imbalance")):
        yield "balance", balance, ""
    yield "scaling", _scaling(mapping(summary, "scaling"), summary.get("ranks")), ""
    if "clocks" in summary:
        yield "clocks", _clocks(mapping(summary, "clocks")), ""
    agreement = mapping(summary, "agreement")
    if agreement:
        same = agreement.get("weights_equal") and agreement.get("loss_equal")
        text = "weights and loss are equal on all ranks at the end"
        yield (
            "agreement",
            text if same else "weights or loss DIFFER between ranks at the end",
            "" if same else "red",
        )


def _communication(found: Mapping[str, Any]) -> str:
    if not is_number(found.get("share")):
        return f"{CANNOT_TELL}: {plain(found.get('why') or 'none were recorded')}"
    text = f"{percent(found['share'])} of the step, {percent(found.get('hidden_share'))} of it hidden"
    if is_number(found.get("exposed_ms")):
        text += f"; exposed {with_unit(found['exposed_ms'], 'ms')}"
    if is_number(found.get("wait_for_others_ms")):
        text += f", {with_unit(found['wait_for_others_ms'], 'ms')} of that waiting for other ranks"
    return text


def _balance(found: Mapping[str, Any]) -> str:
    parts = []
    for what in ("boxes", "pixels"):
        above = mapping(found, what).get("above_mean")
        if is_number(above):
            parts.append(f"{what} {percent(above)}")
    return f"the fullest rank of a step is above the mean by: {', '.join(parts)}" if parts else ""


def _scaling(found: Mapping[str, Any], ranks: Any) -> str:
    speed = f"{with_unit(found.get('images_per_s'), 'images/s')} in all"
    if is_number(found.get("efficiency")):
        alone = mapping(found, "one_rank")
        one = with_unit(alone.get("images_per_s"), "images/s")
        times = f"{number(ranks, 0)} x {one} of one rank ({plain(alone.get('run'))})"
        return f"{speed}, {percent(found['efficiency'])} of {times}"
    return f"{speed}; efficiency: {CANNOT_TELL}: {plain(found.get('why') or 'one rank alone is not known')}"


def _clocks(found: Mapping[str, Any]) -> str:
    if not is_number(found.get("error_us")):
        return f"{CANNOT_TELL}: {plain(found.get('why') or 'not compared')}"
    which = "one clock for all ranks" if found.get("one_clock") else "aligned to rank 0"
    return f"{which}, compared to within {with_unit(found['error_us'], 'us')}"
