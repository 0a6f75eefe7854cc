"""Several ranks: each one's step, who holds the others up, time in collectives."""

from __future__ import annotations

from typing import Any

from detscope.analyze.drawing import ReportData
from detscope.report.colours import PHASE_COLOURS
from detscope.report.figures import is_number, mapping, number, percent, plain, rows, sentences, with_unit
from detscope.report.model import Card, Cards, Chart, Column, Notes, Section, Table
from detscope.report.sections import SectionPart

_FIGURES = (
    ("step ms", "step_ms", "ms"),
    ("work ms", "work_ms", "ms"),
    ("collectives ms", "communication_ms", "ms"),
    ("exposed ms", "exposed_ms", "ms"),
    ("hidden", "hidden_share", "share"),
    ("boxes per step", "boxes_per_step", "number"),
    ("pixels per step", "pixels_per_step", "count"),
)


def section(data: ReportData) -> Section | None:
    """Nothing for a run of one rank: that is no gap in it."""
    summary = data.summary
    found = rows(summary, "rank_rows")
    if not found:
        return None
    definitions = mapping(summary, "rank_definitions")
    columns = [Column("rank"), *(Column(f"{phase} ms", "ms") for phase in PHASE_COLOURS)]
    columns += [Column(title, kind) for title, _, kind in _FIGURES]  # type: ignore[arg-type]
    table = Table(
        "ranks",
        "A step of every rank",
        columns,
        [
            [
                _name(row),
                *(mapping(row, "phases_ms").get(phase) for phase in PHASE_COLOURS),
                *(row.get(key) for _, key, _ in _FIGURES),
            ]
            for row in found
        ],
    )
    notes = [f"{name.replace('_', ' ')}: {plain(text)}" for name, text in definitions.items()]
    return Section(
        "ranks",
        "Ranks",
        _title(summary),
        "Every rank records itself, times are on rank 0's clock. Work: a step without exposed communication.",
        [Cards(_cards(summary)), _chart(found), table, Notes([*notes, *sentences(summary, "rank_notes")])],
    )


def _name(row: Any) -> str:
    return f"rank {row.get('rank')}" + (f" on {plain(row['host'])}" if row.get("host") else "")


def _title(summary: Any) -> str:
    held = mapping(summary, "straggler")
    why = plain(held.get("why") or "cannot tell who holds the others up")
    return f"{number(summary.ranks, 0)} ranks: {why}"


def _cards(summary: Any) -> list[Card]:
    talk, scale = mapping(summary, "communication"), mapping(summary, "scaling")
    clocks, agreement = mapping(summary, "clocks"), mapping(summary, "agreement")
    error = clocks.get("error_us")
    cards = [
        Card("communication", percent(talk.get("share")), "of the step, all ranks together"),
        Card("hidden", percent(talk.get("hidden_share")), "of the communication, behind backward"),
        Card(
            "scaling",
            percent(scale.get("efficiency")) if is_number(scale.get("efficiency")) else "cannot tell",
            plain(scale.get("why") or f"{with_unit(scale.get('images_per_s'), 'images/s')} in all"),
        ),
        Card("clocks", f"± {with_unit(error, 'us')}" if is_number(error) else "cannot tell", "between ranks"),
    ]
    if agreement:
        same = bool(agreement.get("weights_equal") and agreement.get("loss_equal"))
        cards.append(
            Card(
                "at the end", "equal" if same else "different", "weights and loss", "good" if same else "bad"
            )
        )
    return cards


def _chart(found: Any) -> Chart:
    names = [_name(row) for row in found]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": phase,
            "x": [mapping(row, "phases_ms").get(phase) or 0 for row in found],
            "y": names,
            "marker": {"color": colour},
        }
        for phase, colour in PHASE_COLOURS.items()
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "ms per step"}},
        "yaxis": {"autorange": "reversed"},
    }
    return Chart("ranks-chart", "Phases of a step, rank by rank", traces, layout, 110 + 34 * len(found))


PART = SectionPart("ranks", 40, section)
