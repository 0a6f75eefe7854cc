"""The first screen of a run as data: what ran, what limits it, four figures, the step, what to do next.

Everything else stands in the sections; terminal, page and notebook may show this as they like.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from detscope.analyze.drawing import ReportData
from detscope.analyze.summary import RunSummary
from detscope.analyze.trust import judge_trust
from detscope.report.blocks.suggestions import OrderedSuggestion, list_suggestions
from detscope.report.clock_blocks import IDLE_CAUSES
from detscope.report.figures import (
    ABSENT,
    CANNOT_TELL,
    as_sentence,
    count,
    interval,
    number,
    percent,
    with_unit,
)
from detscope.report.model import Section, Tone
from detscope.report.sections.files import next_command, path_from_here
from detscope.report.sections.modules import top_modules
from detscope.runs.folder import short_name

MOST_PARTS = 3
_MODES = {"bare": "bare", "ops": "with operators", "memory": "with memory"}
_MODES |= {"census": "with a census", "evaluation": "evaluation"}
_TONES: dict[str, Tone] = {"stable": "good", "unstable": "warn", "error": "bad", "too few": "warn"}
_WITHOUT_STEPS = ("eval",)


@dataclass(frozen=True)
class HeadlineFigure:
    """One of the figures that are read first."""

    label: str  # p50, p95, speed, peak, ...
    value: str  # with its unit
    detail: str = ""  # its interval, or what is missing


@dataclass(frozen=True)
class PeakMemory:
    """The highest memory of a run, and whose it is."""

    bytes: float
    of: str  # allocated, a pass, process
    words: str  # the same where there is room


@dataclass(frozen=True)
class ShareOfStep:
    """A part of the step, or of the device's time; parts of a bar add up to the whole."""

    name: str
    ms: float | None
    share: float | None
    text: str = ""  # instead of milliseconds


@dataclass(frozen=True)
class CostlyParts:
    """The costliest parts of one kind."""

    title: str  # stages, modules, kernels, classes
    parts: Sequence[ShareOfStep]


@dataclass(frozen=True)
class FirstScreen:
    """What fits one screen; whatever a run cannot have is empty."""

    name: str  # short, and taken by every verb that takes a run
    folder: str  # as it can be typed from here
    ran: str
    setting: str
    steps: str
    status: str  # empty where all is well
    verdict: str
    measured: str  # what p50 and p95 are of: step, image, pass
    figures: Sequence[HeadlineFigure]
    bar: Sequence[ShareOfStep]
    costly: Sequence[CostlyParts]
    advice: OrderedSuggestion | None
    more_advice: int
    trust: str
    trust_tone: Tone
    notes: Sequence[str]
    files: Sequence[str]
    next_command: str
    sections: Sequence[str]  # names that `show --section` takes


def make_first_screen(data: ReportData, sections: Sequence[Section] = ()) -> FirstScreen:
    """The first screen of a run; the names of its sections are taken from these."""
    summary = data.summary
    name = short_name(Path(summary.run))
    trust, tone = _tell_trust(summary)
    said = summary.verdict or CANNOT_TELL
    advice = list_suggestions(summary, shlex.quote(name))
    status = "" if summary.status == "ok" else (summary.status or CANNOT_TELL)
    return FirstScreen(
        name=name,
        folder=path_from_here(summary.run),
        ran=_tell_what_ran(data),
        setting=_tell_setting(data),
        steps=_count_steps(data),
        status=f"{status}: {summary.reason}" if status and summary.reason else status,
        verdict=as_sentence(said),
        measured=_name_measured(summary),
        figures=tuple(_headline_figures(summary)),
        bar=_make_bar(summary),
        costly=tuple(_costly_parts(summary)),
        advice=advice[0] if advice else None,
        more_advice=max(0, len(advice) - 1),
        trust=trust,
        trust_tone=tone,
        notes=(*summary.notes, *(f"cannot tell: {text}" for text in summary.cannot_tell)),
        files=tuple(_name_files(summary)),
        next_command=next_command(data, shlex.quote(name)),
        sections=tuple(section.id for section in sections if section.id != "files"),
    )


def _tell_what_ran(data: ReportData) -> str:
    summary, info = data.summary, data.run.info
    verb = summary.verb or CANNOT_TELL
    if summary.imported is not None:
        names = [Path(source.file).name for source in summary.imported.sources if source.file]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f"{verb} of {names[0]}{more}" if names else verb
    model = info.get("model") or {}
    details = [model["family"]] if model.get("family") else []
    details += [f"{count(model['parameters'])} parameters"] if model.get("parameters") else []
    return f"{verb} {model.get('name') or CANNOT_TELL}" + (f" ({', '.join(details)})" if details else "")


def _tell_setting(data: ReportData) -> str:
    summary = data.summary
    weights, about = data.run.info.get("weights") or {}, data.run.info.get("data") or {}
    batch = f"batch {summary.batch_size}" if summary.batch_size else None
    if batch is not None and summary.accumulated is not None:
        batch = f"{summary.accumulated.per_step:.3g} x {batch}"
    parts = [summary.device, batch, summary.precision]
    parts.append(f"level {summary.level}" if summary.level else None)
    if summary.ranks is not None:
        parts.append(f"{summary.ranks.count or len(summary.ranks.rows)} ranks")
    if about.get("name"):
        many = f" ({about['images']:,} images)" if about.get("images") is not None else ""
        parts.append(f"{about['name']}{many}")
    parts.append(f"{weights['kind']} weights" if weights.get("kind") else None)
    return ", ".join(part for part in parts if part)


def _count_steps(data: ReportData) -> str:
    """How many steps there were and of which kind, told once: `20 recorded of 29: 3 warm-up, 6 bare`."""
    summary, modes = data.summary, Counter(data.steps["mode"].to_list())
    if not modes:
        return ""
    total, n = modes.total(), summary.step_ms.n
    if summary.verb == "import":
        return f"{n:,}" if n == total else f"{n:,} measured of {total:,}"
    slow = summary.warmup.n - modes.get("warmup", 0)
    others = [f"{summary.warmup.n:,} warm-up"] if summary.warmup.n else []
    others += [f"{modes[mode]:,} {words}" for mode, words in _MODES.items() if modes.get(mode)]
    text = f"{max(0, modes.get('recorded', 0) - max(0, slow)):,} recorded of {total:,}"
    return f"{text}: {', '.join(others)}" if others else text


def _name_measured(summary: RunSummary) -> str:
    if summary.step_ms.p50 is None:
        return ""
    return "step" if summary.verb != "infer" else "image" if summary.batch_size == 1 else "pass"


def _headline_figures(summary: RunSummary) -> Iterator[HeadlineFigure]:
    step = summary.step_ms
    if step.p50 is not None:
        ends = interval(step.ci95) if step.ci95 is not None else ""
        yield HeadlineFigure("p50", with_unit(step.p50, "ms"), ends)
        missing = (
            f"{step.p95_why} {'passes' if summary.verb == 'infer' else 'steps'}" if step.p95_why else ABSENT
        )
        yield HeadlineFigure("p95", missing if step.p95 is None else with_unit(step.p95, "ms"))
    accuracy = summary.accuracy
    for name, value in (("AP", accuracy.ap), ("AP50", accuracy.ap50)) if accuracy is not None else ():
        if value is not None:
            yield HeadlineFigure(name, f"{value:.3f}")
    if summary.images_per_s is not None:
        detail = ""
        if summary.ranks is not None and summary.ranks.rows[0].images_per_s is not None:
            detail = f"({number(summary.ranks.rows[0].images_per_s)} of rank 0)"
        yield HeadlineFigure("speed", f"{number(summary.images_per_s)} images/s", detail)
    peak = find_peak(summary)
    if peak is not None:
        yield HeadlineFigure("peak", with_unit(peak.bytes, "bytes"), peak.of)
    if summary.ranks is not None and summary.ranks.communication.share is not None:
        talk = summary.ranks.communication
        yield HeadlineFigure("communication", percent(talk.share), f"({percent(talk.hidden_share)} hidden)")
    if summary.clocks.clock == "device" and summary.clocks.device_step_ms is not None:
        yield HeadlineFigure("device step", with_unit(summary.clocks.device_step_ms, "ms"))
    use = summary.device_use
    if use is not None and use.utilisation is not None and use.utilisation.kernels is not None:
        yield HeadlineFigure("device busy", percent(use.utilisation.kernels))
    elif summary.clocks.busy_share is not None:
        least = "at least " if any(cause.at_most for cause in summary.clocks.idle) else ""
        yield HeadlineFigure("device busy", f"{least}{percent(summary.clocks.busy_share)}")


def find_peak(summary: RunSummary) -> PeakMemory | None:
    """Of allocated memory where it was recorded; else of the process, which is another figure and said so."""
    if summary.memory is not None and summary.memory.peak_bytes is not None:
        return PeakMemory(summary.memory.peak_bytes, "allocated", "of allocated tensors")
    if summary.pass_memory is not None and summary.pass_memory.peak_bytes is not None:
        return PeakMemory(
            summary.pass_memory.peak_bytes, "a pass", "of a pass, above what was there before it"
        )
    process = [row for row in summary.telemetry if (row.source, row.metric) == ("process", "rss_bytes")]
    if process and process[0].max is not None:
        return PeakMemory(process[0].max, "process", "of the process")
    return None


def _make_bar(summary: RunSummary) -> tuple[ShareOfStep, ...]:
    """The phases of a step, on the device's clock where it has one; else the device's window by cause."""
    if summary.phases and summary.step_ms.p50 is not None:
        return tuple(ShareOfStep(phase.name, phase.ms, phase.share) for phase in summary.phases)
    use = summary.device_use
    if use is None or use.idle is None or use.utilisation is None:
        return ()
    busy = [ShareOfStep("busy", (use.utilisation.with_copies_ns or 0) / 1e6, use.idle.busy)]
    idle = [
        ShareOfStep(f"idle: {IDLE_CAUSES[cause.name][0]}", cause.idle_ns / 1e6, cause.share)
        for cause in use.idle.causes
        if cause.idle_ns
    ]
    return (*busy, *idle)


def _costly_parts(summary: RunSummary) -> Iterator[CostlyParts]:
    stages = [stage for stage in summary.stages if stage.depth == 0 and stage.total_ms > 0]
    if stages:
        dearest = sorted(stages, key=lambda stage: -stage.total_ms)[:MOST_PARTS]
        yield CostlyParts(
            "stages", [ShareOfStep(stage.name, stage.total_ms, stage.share) for stage in dearest]
        )
    modules = top_modules(summary.modules, MOST_PARTS)
    if modules:
        yield CostlyParts("modules", [ShareOfStep(row.path, row.total_ms, row.share) for row in modules])
    kernels = summary.device_use.kernels if summary.device_use is not None else ()
    if kernels and not modules:
        dearest_kernels = sorted(kernels, key=lambda kernel: -kernel.ms)[:MOST_PARTS]
        yield CostlyParts("kernels", [ShareOfStep(row.short, row.ms, row.share) for row in dearest_kernels])
    yield from _worst_classes(summary)


def _worst_classes(summary: RunSummary) -> Iterator[CostlyParts]:
    accuracy = summary.accuracy
    if accuracy is None or accuracy.evaluation is None or summary.verb not in _WITHOUT_STEPS:
        return
    ranked = sorted(
        (one.ap, one.name or ABSENT) for one in accuracy.evaluation.coco_box.classes if one.ap is not None
    )
    if ranked:
        parts = [ShareOfStep(name, None, None, f"AP {ap:.3f}") for ap, name in ranked[:MOST_PARTS]]
        yield CostlyParts("worst", parts)


def percent_of(share: float) -> str:
    """A share without digits behind the point: an estimate has none."""
    return f"{share * 100:.0f} %"


def _tell_trust(summary: RunSummary) -> tuple[str, Tone]:
    if summary.step_ms.p50 is None:
        return "", ""
    trust, cost = judge_trust(summary), summary.overhead_ratio.value
    text = f"{trust.verdict}: {f'{trust.cause}; ' if trust.cause else ''}"
    text += f"steps spread by {percent_of(trust.spread)}" if trust.cause and trust.spread else trust.reason
    if cost is not None and not trust.cause:  # else the cost is as shaky as the times
        text += f"; recording costs {(cost - 1) * 100:+.1f} %"
    return text, _TONES.get(trust.verdict, "")


def _name_files(summary: RunSummary) -> Iterator[str]:
    """The page first: it is what one opens."""
    for file in sorted(summary.files, key=lambda file: Path(file.path).name != "report.html"):
        path = Path(file.path)
        yield f"{path.name}/" if path.is_dir() else path.name
