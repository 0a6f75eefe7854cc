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
from detscope.report.figures import CANNOT_TELL, as_sentence, count, interval, number, percent, with_unit
from detscope.report.first_screen import find_peak
from detscope.report.model import Block, Card, Cards, Fact, Facts, Findings, Section, Suggestion, Tone
from detscope.report.sections import SectionPart
from detscope.report.sections.files import look_closer

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
    elif data.summary.step_ms.p50 is not None and (closer := look_closer(data.summary)):
        told = "No rule found anything to change in these figures; operators tell more."
        blocks.append(
            Findings([Suggestion("look into it operator by operator", told, "", closer)], brief=False)
        )
    return Section("verdict", "Verdict", as_sentence(said), "", blocks, brief_title=True)


def _make_suggestion(row: OrderedSuggestion) -> Suggestion:
    sentences = [row.evidence]
    if row.how and row.place:
        sentences.append(row.how)
    elif row.how and row.command:
        sentences.append(row.how if row.how.startswith("in the ") else f"in the code: {row.how}")
    told = " ".join(f"{as_sentence(text).rstrip('.')}." for text in sentences if text)
    return Suggestion(row.title, told, row.gain, row.command or ("" if row.place else row.how), row.place)


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
    """Half, nearly all, how many and how much first: of every verb the same four, where it can have them."""
    summary, step = data.summary, data.summary.step_ms
    infers = summary.verb == "infer"
    what = "per image" if infers and summary.batch_size == 1 else "per pass" if infers else "per step"
    if step.p50 is not None:
        ends = f"95 % interval {interval(step.ci95)}" if step.ci95 is not None else "too few for an interval"
        yield Card(f"Median {what}", with_unit(step.p50, "ms"), f"{ends}, n = {step.n}")
        yield _percentile_card(summary, 95, step.p95, what)
    if summary.verb == "eval":
        yield from _accuracy_cards(data)
    if summary.images_per_s is not None:
        yield Card("Speed", f"{number(summary.images_per_s)} images/s", _tell_batch(summary))
    peak = find_peak(summary)
    if peak is not None:
        yield Card("Peak of memory", with_unit(peak.bytes, "bytes"), peak.words)
    if summary.verb != "eval":
        yield from _accuracy_cards(data)
    if infers and step.p50 is not None:
        yield _percentile_card(summary, 99, step.p99, what)
    if infers and summary.nms is not None:
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


def _tell_batch(summary: RunSummary) -> str:
    if summary.ranks is not None:
        return (
            f"{number(summary.ranks.count, 0)} ranks together, batch {summary.batch_size or CANNOT_TELL} each"
        )
    return f"batch {summary.batch_size or CANNOT_TELL}"


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


def _percentile_card(summary: RunSummary, percentile: int, value: float | None, what: str) -> Card:
    """A percentile, or what it needs to be told."""
    if value is not None:
        return Card(f"p{percentile} {what}", with_unit(value, "ms"))
    need = next((one for one in summary.percentile_needs if one.percentile == percentile), None)
    detail = f"{need.words}; {need.have} were measured" if need is not None else ""
    return Card(f"p{percentile} {what}", CANNOT_TELL, detail)


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
