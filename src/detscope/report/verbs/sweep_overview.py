"""The first screen of a sweep: which network is fastest, what the others do, and what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from detscope.analyze.sweep.figures import SweepGroup, SweepPoint, SweepSummary
from detscope.report.colours import BLUE
from detscope.report.figures import count, number, with_unit
from detscope.report.model import (
    Axis,
    Block,
    Card,
    Cards,
    Chart,
    Column,
    Fact,
    Facts,
    Findings,
    Section,
    Series,
    Suggestion,
    make_table,
)
from detscope.report.progress import duration_text

_MOST_BARS = 12
_DEVICE = {"device": Column("device")}
_DEVICE |= {name: Column(name, "count") for name in ("done", "failed", "skipped", "left")}
_NETWORK = {"name": Column("Network", "code")}
_NETWORK |= {name: Column(name, "count") for name in ("parameters", "measured", "failed", "skipped")}
_NETWORK |= {"largest_batch": Column("largest batch", "count")}
_NETWORK |= {"best_images_per_s": Column("best images/s", "number")}


def overview_section(summary: SweepSummary) -> Section:
    """The verdict, its figures, what to do next, one picture; then every network."""
    fastest = rank_groups(summary.groups)
    # of one device the title says the same
    telling = len(summary.devices) if len(summary.devices) > 1 else 0
    told = [f"{fastest[0].name} is fastest: {_tell_best(fastest[0])}"] if fastest else []
    blocks: list[Block] = [
        Cards(list(_figure_cards(summary, fastest))),
        Facts(_status_facts(summary), full=False),
        Findings(list(_next_steps(summary)), brief=False),
        *_best_chart(fastest),
        make_table("networks", "Every network", summary.networks, _NETWORK),
        make_table("devices", "How far every device is", summary.devices, _DEVICE, telling),
    ]
    title = "; ".join([*told, describe_state(summary)])
    return Section("overview", "Verdict", title, "", blocks, brief_title=True)


def rank_groups(groups: Sequence[SweepGroup]) -> list[SweepGroup]:
    """Curves with a speed, the fastest first."""
    timed = [group for group in groups if group.best_images_per_s is not None]
    return sorted(timed, key=lambda group: -(group.best_images_per_s or 0.0))


def describe_state(summary: SweepSummary) -> str:
    """`10 trials measured, 1 failed, 1 still to run`."""
    if not summary.done + summary.failed + summary.skipped:
        return "No trial of this sweep has ended yet"
    words = [f"{count(summary.done)} trials measured"]
    words += [f"{count(summary.failed)} failed"] if summary.failed else []
    words += [f"{count(summary.skipped)} skipped"] if summary.skipped else []
    words += [f"{count(summary.left)} still to run"] if summary.left else []
    return ", ".join(words)


def _tell_best(group: SweepGroup) -> str:
    return f"{number(group.best_images_per_s)} images/s at batch {group.best_batch}"


def _figure_cards(summary: SweepSummary, fastest: Sequence[SweepGroup]) -> Iterator[Card]:
    points = [(group, point) for group in summary.groups for point in group.points]
    if fastest:
        best = fastest[0]
        speed = f"{number(best.best_images_per_s)} images/s"
        yield Card("Fastest", speed, f"{best.name} at batch {best.best_batch}")
    timed = [pair for pair in points if pair[1].step_ms is not None]
    if timed:
        group, point = min(timed, key=lambda pair: pair[1].step_ms or 0.0)
        yield Card("Shortest step", with_unit(point.step_ms, "ms"), _name_point(group, point))
    for what in ("allocated", "process"):
        sized = [pair for pair in points if getattr(pair[1], f"{what}_bytes")]
        if sized:
            group, point = max(sized, key=lambda pair: getattr(pair[1], f"{what}_bytes"))
            size = with_unit(getattr(point, f"{what}_bytes"), "bytes")
            yield Card("Highest peak", size, f"{what}, {_name_point(group, point)}")
            break
    unstable = sum(point.unstable for _, point in points)
    if unstable:
        text = "points whose interval stayed wider than asked for, or that kept changing"
        yield Card("To be read with care", count(unstable), text, "warn")
    whole = summary.done + summary.failed + summary.skipped + summary.left
    others = [("failed", summary.failed), ("skipped", summary.skipped), ("still to run", summary.left)]
    told = [f"{count(many)} {word}" for word, many in others if many]
    told.append(f"{duration_text(summary.measured_s)} in trials")
    tone = "bad" if summary.failed else "warn" if summary.left else "good" if summary.done else ""
    yield Card("Measured", f"{count(summary.done)} of {count(whole)}", ", ".join(told), tone)  # type: ignore[arg-type]


def _name_point(group: SweepGroup, point: SweepPoint) -> str:
    return f"{group.name} at batch {point.batch_size}"


def _next_steps(summary: SweepSummary) -> Iterator[Suggestion]:
    """What is left, what went wrong, and what the figures are good for."""
    if summary.left:
        text = "What the store has is not run again."
        title = f"run the {count(summary.left)} trials that are left"
        yield Suggestion(title, text, "", "detscope sweep PLAN.toml --resume")
    if summary.failed:
        kinds = Counter(row.status for row in summary.failed_rows if row.kind != "skipped")
        most = ", ".join(f"{status} ({count(many)})" for status, many in kinds.most_common(3))
        title = f"look at the {count(summary.failed)} that failed"
        yield Suggestion(title, f"Most often: {most}. Their last words are in the section Failures.")
    unstable = sum(point.unstable for group in summary.groups for point in group.points)
    if unstable:
        text = (
            "A limit came before their intervals were narrow, or the steps kept changing. Raise max_seconds"
            " in the plan, or measure on a quiet machine, into a new store."
        )
        yield Suggestion(f"measure {count(unstable)} points again", text)
    if summary.done:
        text = "A model of this device answers for networks, batch and image sizes that were not measured."
        yield Suggestion("predict what was not run", text, "", f"detscope fit {summary.store} --out MY.model")


def _best_chart(fastest: Sequence[SweepGroup]) -> list[Block]:
    shown = fastest[:_MOST_BARS]
    if len(shown) < 2:
        return []
    names = [group.name for group in shown]
    rates = [group.best_images_per_s or 0.0 for group in shown]
    texts = [f"{number(rate)} at batch {group.best_batch}" for rate, group in zip(rates, shown, strict=True)]
    details = [f"{group.name}: {_tell_best(group)}" for group in shown]
    series = Series("best images/s", rates, names, BLUE, "bars", texts=texts, details=details)
    label = "Best images per second of " + (
        f"the {_MOST_BARS} fastest of {len(fastest)}" if len(fastest) > _MOST_BARS else "each network"
    )
    height = 110 + 30 * len(shown)
    across = Axis("images per second", lowest=0)
    return [Chart("best", label, [series], across, Axis(falling=True), height=height, legend="none")]


def _status_facts(summary: SweepSummary) -> list[Fact]:
    facts = []
    if summary.ran == 0:
        facts.append(Fact("ran", f"nothing was run: {summary.store} has all {summary.planned} trials"))
    if summary.retried:
        facts.append(Fact("also kept", f"{summary.retried} attempts that were tried again"))
    if summary.duplicates:
        facts.append(Fact("also kept", f"{summary.duplicates} late duplicates"))
    facts += [
        Fact("failed", f"{row.network} {row.stage} batch {row.batch_size}: {row.status}", "bad")
        for row in summary.last_failures
    ]
    return facts
