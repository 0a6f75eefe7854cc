"""Device models: what was fitted, how wrong it is on what it has not seen; and networks that were pruned."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp

from detscope.analyze.fitting import FitResult, FittedTarget, PruneResult, ScoreResult
from detscope.report.figures import count, percent
from detscope.report.model import Block, Column, Fact, Facts, Section, Table, Value


def fit_sections(found: FitResult) -> list[Section]:
    """A device model, and the next command."""
    layers = f" and {found.layer_rows} single layers" if found.layer_rows else ""
    title = f"{found.rows} rows of {len(found.networks)} networks{layers}, data {found.fingerprint}"
    facts = list(_row_facts(found))
    for name, part in found.targets.items():
        follow = "; mean errors left out:" if part.left_out_errors else ""
        facts.append(Fact(name, f"{part.near} for seen networks, {part.far} for others{follow}"))
        for situation, errors in part.left_out_errors.items():
            words = ", ".join(f"{method} {percent(error)}" for method, error in errors.items())
            facts.append(Fact(name, f"  {situation}: {words}"))
        facts.append(Fact(name, f"  90 % intervals: {_write_widths(part)}"))
    if found.layer_times:
        facts.append(Fact("layers", f"{found.layer_times} (--layer-times uses them again)"))
    facts.append(Fact("model", found.model, stays=True))
    facts.append(Fact("next", f"detscope predict NETWORK --device-model {found.model}", stays=True))
    return [Section("fit", "Fitted", title, "", [Facts(facts)], brief_title=True)]


def _row_facts(found: FitResult | ScoreResult) -> Iterator[Fact]:
    """Under which conditions rows were measured, which were left out, and what else is to be known."""
    if found.conditions:
        words = ", ".join(f"{name} {value}" for name, value in found.conditions.items())
        yield Fact("rows with", words)
    for why, rows in found.left_out.items():
        yield Fact("left out", f"{rows} {'row' if rows == 1 else 'rows'}: {why}")
    for note in found.notes:
        yield Fact("note", note, "warn")


def _write_widths(part: FittedTarget) -> str:
    """Half of an interval is a factor: up to so many times as much, or as little."""
    beside = part.near_width if part.beside_width is None else part.beside_width
    near, far = f"{exp(part.near_width):.2f}", f"{exp(part.far_width):.2f}"
    return f"within a factor of {exp(beside):.2f} to {near} for seen networks, {far} for others"


def score_sections(found: ScoreResult) -> list[Section]:
    """Errors by target, protocol and method, the noise of the data, and decisions."""
    shares = ("MAPE", "median", "p90", "in 10 %", "held", "width")
    columns = [Column("target"), Column("protocol"), Column("method"), Column("rows", "count")]
    columns += [Column(name, "share") for name in shares]
    body: list[list[Value]] = [
        [
            *(row.target, row.protocol, row.method, row.rows),
            *(row.mean, row.median, row.p90, row.within_10_percent, row.coverage, row.width),
        ]
        for row in found.scores
    ]
    facts = [
        Fact(
            "columns",
            "MAPE: mean error, every network weighing the same; in 10 %: share of rows off by less; "
            "held: share inside the 90 % intervals; width: of those",
        )
    ]
    for name, noise in found.noise_floor.items():
        words = _write_noise(noise, found.measured_interval[name])
        facts.append(Fact("noise", f"of the data, {name}: {words}"))
    made = found.decisions
    if made is not None:
        facts.append(
            Fact(
                "fits or not",
                f"{percent(made.right)} right of {made.rows}; {made.too_close} too close to call, plain "
                f"answers {percent(made.plain_right)} right, {made.false_fits} said to fit and did not",
            )
        )
    if found.picture:
        facts.append(Fact("picture", found.picture, stays=True))
    table = Table("scores", "Errors", columns, body, brief_rows=len(body))
    blocks: list[Block] = [Facts(list(_row_facts(found))), table, Facts(facts)]
    return [Section("scores", "Scores", f"{found.rows} rows were asked", "", blocks)]


def _write_noise(between: float | None, inside: float | None) -> str:
    words = []
    if between is not None:
        words.append(f"{percent(between)} between measurements of the same case")
    if inside is not None:
        words.append(f"medians are known to {percent(inside)} within a measurement")
    return "; ".join(words) or "cannot tell: nothing was measured twice"


def prune_sections(found: PruneResult) -> list[Section]:
    """Networks that were made, what could not be made, and the next command."""
    columns = [Column("network", "code"), Column("asked", "number"), Column("reached", "number")]
    columns += [Column("parameters", "number"), Column("GFLOPs", "number"), Column("widths", "number")]
    body: list[list[Value]] = [
        [
            row.network,
            f"{row.level_asked:g} %",
            f"{row.level_reached:.2f} %",
            count(row.parameters),
            row.flops / 1e9,
            f"{row.widths.smallest}-{row.widths.largest} ({row.widths.median})",
        ]
        for row in found.networks
    ]
    facts = [Fact("note", f"{row.network}: {row.why_not}", "warn") for row in found.networks if row.why_not]
    facts += [Fact("failed", failure.reason, "bad") for failure in found.failed]
    if found.networks:
        facts += [
            Fact("FLOPs", "one image forward, multiply and add count as two"),
            Fact("widths", "output channels of the layers, smallest to largest (median)"),
            Fact("checked", "every network was read back: same outputs bit by bit, forward and backward ran"),
            Fact("next", "name these folders in a plan and run detscope sweep plan.toml", stays=True),
        ]
    title = f"Networks in {found.out}"
    table = Table("networks", title, columns, body, brief_rows=len(body))
    return [Section("networks", "Networks", title, "", [table, Facts(facts)])]
