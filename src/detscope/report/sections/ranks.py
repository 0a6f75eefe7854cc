"""Several ranks: each one's step, who holds the others up, time in collectives."""

from __future__ import annotations

from collections.abc import Iterator

from detscope.analyze.drawing import ReportData
from detscope.analyze.ranks.figures import RankClocks, RankCommunication, Ranks
from detscope.analyze.ranks.straggler import Imbalance, RankFigures
from detscope.report.colours import PHASE_COLOURS
from detscope.report.figures import CANNOT_TELL, number, percent, with_unit
from detscope.report.model import (
    Axis,
    Block,
    Card,
    Cards,
    Chart,
    Column,
    Fact,
    Facts,
    Notes,
    Section,
    Series,
    Table,
    Tone,
    Value,
)
from detscope.report.sections import SectionPart

BRIEF_RANKS = 32


def section(data: ReportData) -> Section | None:
    """Nothing for a run of one rank: that is no gap in it."""
    ranks = data.summary.ranks
    if ranks is None:
        return None
    words = ranks.definitions
    notes = [f"{name.replace('_', ' ')}: {getattr(words, name)}" for name in words.__struct_fields__]
    blocks: list[Block] = [
        Cards(list(_rank_cards(ranks))),
        _phases_chart(ranks),
        _ranks_table(ranks),
        Facts(list(_rank_facts(ranks)), full=False),
        Notes(notes),
    ]
    return Section(
        "ranks",
        "Ranks",
        _write_title(ranks),
        "Every rank records itself, times are on rank 0's clock. Work: a step without exposed communication.",
        blocks,
    )


def _write_title(ranks: Ranks) -> str:
    many, why = number(ranks.count, 0), ranks.straggler.why
    return f"{many} {why}" if why.startswith("ranks ") else f"{many} ranks: {why}"


def _name_rank(row: RankFigures) -> str:
    return f"rank {row.rank}" + (f" on {row.host}" if row.host else "")


def _ranks_table(ranks: Ranks) -> Table:
    columns = [Column("rank"), Column("step", "ms"), *(Column(phase, "ms") for phase in PHASE_COLOURS)]
    columns += [Column("exposed", "ms"), Column("hidden", "share"), Column("work", "ms")]
    columns += [Column("collectives", "ms", brief=False), Column("waiting for others", "ms", brief=False)]
    columns += [
        Column("images/s", "number", brief=False),
        Column("boxes per step", "number", brief=False),
        Column("pixels per step", "count", brief=False),
    ]
    body: list[list[Value]] = []
    for row in ranks.rows:
        phases = {phase.name: phase.ms for phase in row.phases}
        body.append(
            [
                *(_name_rank(row), row.step_ms, *(phases.get(phase) for phase in PHASE_COLOURS)),
                *(row.exposed_ms, row.hidden_share, row.work_ms, row.communication_ms),
                *(row.wait_for_others_ms, row.images_per_s, row.boxes_per_step, row.pixels_per_step),
            ]
        )
    tones: list[Tone] = ["warn" if row.rank == ranks.straggler.rank else "" for row in ranks.rows]
    caption = f"A step of every rank, ms ({number(ranks.count, 0)} ranks)"
    return Table("ranks", caption, columns, body, tones=tones, brief_rows=BRIEF_RANKS)


def _rank_facts(ranks: Ranks) -> Iterator[Fact]:
    """Straggler, collectives, balance, scaling, clocks, agreement."""
    held = ranks.straggler
    yield Fact("straggler", held.why, "warn" if held.rank is not None else "")
    yield Fact("collectives", _communication_words(ranks.communication))
    if balance := _balance_words(ranks.imbalance):
        yield Fact("balance", balance)
    yield Fact("scaling", _scaling_words(ranks))
    yield Fact("clocks", _clock_words(ranks.clocks))
    if ranks.agreement is not None:
        same = ranks.agreement.weights_equal and ranks.agreement.loss_equal
        words = "are equal on all ranks" if same else "DIFFER between ranks"
        both = "weights and loss" if same else "weights or loss"
        yield Fact("agreement", f"{both} {words} at the end", "" if same else "bad")


def _communication_words(found: RankCommunication) -> str:
    if found.share is None:
        return f"{CANNOT_TELL}: {found.why or 'none were recorded'}"
    text = f"{percent(found.share)} of the step, {percent(found.hidden_share)} of it hidden"
    text += f"; exposed {with_unit(found.exposed_ms, 'ms')}"
    if found.wait_for_others_ms is not None:
        text += f", {with_unit(found.wait_for_others_ms, 'ms')} of that waiting for other ranks"
    return text


def _balance_words(found: Imbalance) -> str:
    both = (("boxes", found.boxes.above_mean), ("pixels", found.pixels.above_mean))
    parts = [f"{what} {percent(above)}" for what, above in both if above is not None]
    return f"the fullest rank of a step is above the mean by: {', '.join(parts)}" if parts else ""


def _scaling_words(ranks: Ranks) -> str:
    scaling, alone = ranks.scaling, ranks.scaling.one_rank
    speed = f"{with_unit(scaling.images_per_s, 'images/s')} in all"
    if scaling.efficiency is None or alone is None:
        return f"{speed}; efficiency: {CANNOT_TELL}: {scaling.why}"
    one = f"{with_unit(alone.images_per_s, 'images/s')} of one rank ({alone.run})"
    return f"{speed}, {percent(scaling.efficiency)} of {number(ranks.count, 0)} x {one}"


def _clock_words(clocks: RankClocks) -> str:
    if clocks.error_us is None:
        return f"{CANNOT_TELL}: {clocks.why}"
    which = "one clock for all ranks" if clocks.one_clock else "aligned to rank 0"
    return f"{which}, compared to within {with_unit(clocks.error_us, 'µs')}"


def _rank_cards(ranks: Ranks) -> Iterator[Card]:
    talk, scaling, error = ranks.communication, ranks.scaling, ranks.clocks.error_us
    yield Card("Communication", percent(talk.share), "of the step, all ranks together")
    yield Card("Hidden", percent(talk.hidden_share), "of the communication, behind backward")
    efficiency = CANNOT_TELL if scaling.efficiency is None else percent(scaling.efficiency)
    speed = f"{with_unit(scaling.images_per_s, 'images/s')} in all"
    yield Card("Scaling", efficiency, scaling.why or speed)
    yield Card("Clocks", CANNOT_TELL if error is None else f"± {with_unit(error, 'µs')}", "between ranks")
    if ranks.agreement is not None:
        same = bool(ranks.agreement.weights_equal and ranks.agreement.loss_equal)
        word, tone = ("equal", "good") if same else ("different", "bad")
        yield Card("At the end", word, "weights and loss", tone)  # type: ignore[arg-type]


def _phases_chart(ranks: Ranks) -> Chart:
    names = [_name_rank(row) for row in ranks.rows]
    lines = []
    for phase, colour in PHASE_COLOURS.items():
        spent = [next((one.ms for one in row.phases if one.name == phase), None) for row in ranks.rows]
        lines.append(Series(phase, [ms or 0.0 for ms in spent], names, colour, "bars"))
    label, height = "Phases of a step, rank by rank", 110 + 34 * len(names)
    return Chart("ranks-chart", label, lines, Axis("ms per step"), Axis(falling=True), height=height)


PART = SectionPart("ranks", 12, section, order_in={"import": 15})
