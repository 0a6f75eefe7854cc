"""The first screen: what ran, the verdict, the figures that are read first, and what to change."""

from __future__ import annotations

from collections.abc import Iterator

from detscope.analyze.accuracy import KINDS
from detscope.analyze.device.figures import DeviceUse
from detscope.analyze.device.utilisation import Utilisation
from detscope.analyze.drawing import ReportData
from detscope.analyze.summary import RunSummary
from detscope.analyze.trust import judge_trust
from detscope.report.blocks.suggestions import OrderedSuggestion, list_suggestions
from detscope.report.clock_blocks import IDLE_CAUSES
from detscope.report.figures import CANNOT_TELL, count, interval, number, percent, with_unit
from detscope.report.model import Block, Card, Cards, Fact, Facts, Findings, Section, Suggestion, Tone
from detscope.report.sections import SectionPart

MOST_FINDINGS = 5
_RANDOM_WEIGHTS = "random weights: proposals and NMS load differ from a trained model"
_TONES: dict[str, Tone] = {"stable": "good", "unstable": "warn", "error": "bad"}


def section(data: ReportData) -> Section:
    """The verdict and its evidence."""
    said = data.summary.verdict or CANNOT_TELL
    blocks: list[Block] = [Facts(list(_run_facts(data)), full=False), Cards(list(_cards(data)))]
    rows = [row for row in list_suggestions(data.summary) if row.about == "time"]
    if rows:  # what lowers the peak stands with the memory
        blocks.append(Findings([_make_suggestion(row) for row in rows[:MOST_FINDINGS]]))
    return Section("verdict", "Verdict", said[:1].upper() + said[1:], "", blocks, brief_title=True)


def _make_suggestion(row: OrderedSuggestion) -> Suggestion:
    change = f"{_tell_change(row.how)}." if row.how and (row.command or row.place) else ""
    if row.place:
        change = f"{row.how[:1].upper()}{row.how[1:]}"
    told = " · ".join(part for part in (row.place, " ".join((row.evidence, change)).strip()) if part)
    return Suggestion(row.title, told, row.gain, row.command or ("" if row.place else row.how))


def _tell_change(how: str) -> str:
    """`In the code: ...`, unless it says itself where."""
    return how[:1].upper() + how[1:] if how.startswith("in the ") else f"In the code: {how}"


def _run_facts(data: ReportData) -> Iterator[Fact]:
    summary = data.summary
    if summary.imported is None:  # else files stand in the place of a model
        yield from _model_facts(data)
    batch, level = summary.batch_size, summary.level
    setting = [summary.device, f"batch {batch}" if batch else None, summary.precision]
    setting.append(f"level {level}" if level else None)
    yield Fact("on", ", ".join(part for part in setting if part) or CANNOT_TELL)
    if summary.status != "ok":
        reason = f": {summary.reason}" if summary.reason else ""
        yield Fact("status", (summary.status or CANNOT_TELL) + reason, "bad")


def _model_facts(data: ReportData) -> Iterator[Fact]:
    info = data.run.info
    model, weights, about = info.get("model") or {}, info.get("weights") or {}, info.get("data") or {}
    details = [model["family"]] if model.get("family") else []
    details += [f"{count(model['parameters'])} parameters"] if model.get("parameters") else []
    name = model.get("name") or CANNOT_TELL
    yield Fact("model", name + (f" ({', '.join(details)})" if details else ""), "strong")
    kind = weights.get("kind")
    note = weights.get("note") or (_RANDOM_WEIGHTS if kind == "random" else "")
    yield Fact(
        "weights", f"{kind or CANNOT_TELL}{f': {note}' if note else ''}", "warn" if kind == "random" else ""
    )
    classes = about.get("classes")
    many = len(classes) if isinstance(classes, list) else classes
    parts = [about.get("name") or CANNOT_TELL]
    parts += [f"{about['images']:,} images"] if about.get("images") is not None else []
    parts += [f"{many:,} classes"] if many is not None else []
    yield Fact("data", ", ".join(parts))


def _cards(data: ReportData) -> Iterator[Card]:
    summary, step = data.summary, data.summary.step_ms
    what = "per image" if summary.verb == "infer" and summary.batch_size == 1 else "per step"
    if step.p50 is not None:
        detail = f"95 % interval {interval(step.ci95)}, n = {step.n}"
        yield Card(f"Median {what}", with_unit(step.p50, "ms"), detail)
    yield from _percentile_cards(summary)
    if summary.images_per_s is not None:
        speed = f"{number(summary.images_per_s)} images/s"
        yield Card("Speed", speed, f"batch {summary.batch_size or CANNOT_TELL}")
    yield from _accuracy_cards(data)
    memory = summary.memory
    if memory is not None and memory.peak_bytes is not None:
        yield Card("Peak of allocated memory", with_unit(memory.peak_bytes, "bytes"))
    elif summary.pass_memory is not None and summary.pass_memory.peak_bytes is not None:
        peak = with_unit(summary.pass_memory.peak_bytes, "bytes")
        yield Card("Peak of allocated memory", peak, "in a pass, above what was there before it")
    if summary.verb == "infer" and summary.nms is not None:
        where = ", ".join(summary.nms.stages)
        yield Card("NMS", with_unit(summary.nms.ms, "ms"), f"{percent(summary.nms.share)} of it, in {where}")
    use = summary.device_use
    if use is not None and use.utilisation is not None and use.utilisation.kernels is not None:
        yield from _device_cards(use, use.utilisation)
    elif use is not None and use.cores is not None and (reached := use.cores.find_throughput()) is not None:
        kernels = f"of the device's peak, over {number(use.cores.kernels, 0)} kernels by their cycles"
        yield Card("SM throughput", percent(reached), kernels)
    elif summary.clocks.busy_share is not None:
        least = "at least " if any(cause.at_most for cause in summary.clocks.idle) else ""
        yield Card("Device busy", f"{least}{percent(summary.clocks.busy_share)}", summary.clocks.bound or "")
    if not step.n:  # no step was timed, so there is none to trust
        return
    trust, cost = judge_trust(summary), summary.overhead_ratio.value
    detail = "; ".join(part for part in (trust.cause, trust.reason) if part)
    detail += f"; recording costs {(cost - 1) * 100:+.1f} %" if cost is not None else ""
    yield Card("Trust", trust.verdict, detail, _TONES.get(trust.verdict, ""))


def _device_cards(use: DeviceUse, busy: Utilisation) -> Iterator[Card]:
    estimates = (("SM efficiency", use.sm_efficiency), ("occupancy", use.occupancy))
    told = [
        f"{name} {percent(one.value)}" for name, one in estimates if one is not None and one.value is not None
    ]
    yield Card("Device busy with kernels", percent(busy.kernels), ", ".join(told))
    causes = use.idle.causes if use.idle is not None else ()
    longest = max(causes, key=lambda cause: cause.idle_ns, default=None)
    if longest is not None and longest.idle_ns:
        yield Card(
            "Device idle",
            percent(use.idle.total if use.idle else None),
            f"most: {IDLE_CAUSES[longest.name][0]} {percent(longest.share)}",
        )


def _percentile_cards(summary: RunSummary) -> Iterator[Card]:
    """p95 where it is known; of an inference p99 as well, each with what it needs."""
    infers = summary.verb == "infer"
    needs = {need.percentile: need for need in summary.percentile_needs if infers}
    known = ((95, summary.step_ms.p95), (99, summary.step_ms.p99 if infers else None))
    for percentile, value in known:
        need = needs.get(percentile)
        if value is not None:
            yield Card(f"p{percentile}", with_unit(value, "ms"))
        elif need is not None:
            detail = f"{need.have} were measured" + (f"; {need.how}" if need.how else "")
            yield Card(f"p{percentile}", f"needs {need.samples} {need.what}", detail)


def _accuracy_cards(data: ReportData) -> Iterator[Card]:
    accuracy = data.summary.accuracy
    if accuracy is None:
        return
    for kind, word in KINDS.items():
        found = getattr(accuracy, kind)
        if found is not None and found.ap is not None:
            half = f"AP50 {found.ap50:.3f}" if found.ap50 is not None else ""
            yield Card(f"AP of {word}", f"{found.ap:.3f}", half)
    point = accuracy.evaluation.operating_point if accuracy.evaluation is not None else None
    if point is not None:
        both = f"precision {percent(point.precision)}, recall {percent(point.recall)}"
        yield Card("Best cut", f"score {number(point.score, 2)}", both)


PART = SectionPart("verdict", 10, section)
