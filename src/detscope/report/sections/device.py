"""Device use: how busy, how well used, idle by cause, who made it wait; on a CPU the cores in its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from detscope.analyze.device.blame import IdleBlame
from detscope.analyze.device.cores import CoreUse, CounterFigures
from detscope.analyze.device.figures import DeviceFigures, DeviceUse
from detscope.analyze.device.idle import IdleTime
from detscope.analyze.device.kernels import DeviceEstimate, KernelFigures
from detscope.analyze.device.parts import DeviceStep, PartUse, StepBreakdown
from detscope.analyze.device.processor import ProcessorUse
from detscope.analyze.device.transfers import CopyRow
from detscope.analyze.device.utilisation import Utilisation
from detscope.analyze.drawing import ReportData, thinned
from detscope.report.blocks.machine import telemetry_chart
from detscope.report.clock_blocks import BY_MARKS, IDLE_CAUSES, clock_blocks, clock_title
from detscope.report.colours import BLUE, GREEN, one_bar
from detscope.report.figures import CANNOT_TELL, as_sentence, number, percent, with_unit
from detscope.report.model import (
    BRIEF_ROWS,
    Absent,
    Axis,
    Block,
    Chart,
    Column,
    Fact,
    Facts,
    Section,
    Series,
    Table,
    Value,
)
from detscope.report.sections import SectionPart

MOST_BLAMED, MOST_KERNELS, MOST_STEPS = 20, 40, 200
_NOT_RECORDED = "device use needs --level ops on CUDA, or an imported trace"


def section(data: ReportData) -> Section | Absent:
    """Utilisation with numerator and denominator, idle, blame; else counters, else cores."""
    use, processor = data.summary.device_use, data.summary.processor
    cores = Facts(list(_processor_facts(processor)))
    if use is not None and use.utilisation is not None:
        kernels = percent(use.utilisation.kernels)
        limit = _tell_idle(use)
        if data.summary.clocks.agreement:
            limit = f" of the window of operators; the step is {data.summary.clocks.bound or 'not judged'}"
        definition = f"{as_sentence(use.utilisation.definition.kernels)}. Copies are a figure of their own."
        clocks = data.summary.clocks  # where both are told, the operators' window is not what is judged
        # by kernels the window tells the same, with copies apart: one picture of it is enough
        twice = ("device-step", "device-step-table") if clocks.source == "kernels" else ()
        told = [block for block in clock_blocks(clocks) if getattr(block, "id", "") not in twice]
        blocks = [*told, *_use_blocks(use, use.utilisation, not clocks.agreement), cores]
        return Section(
            "device", "Device use", f"Kernels run {kernels} of the time{limit}", definition, blocks
        )
    if use is not None and use.cores is not None:
        unknown = Facts([Fact("device use", f"{CANNOT_TELL}: {use.why}", "warn")])
        title = "Counters of single kernels: how well they use the cores, not how busy the device is"
        blocks = [unknown, *_counter_tables(use.cores)]
        return Section("device", "Device use", title, use.cores.definition, blocks)
    clocks, chart = data.summary.clocks, telemetry_chart(data)
    if clocks.clock == "device":
        blocks = [*clock_blocks(clocks), cores, *([chart] if chart else [])]
        return Section("device", "Device use", clock_title(clocks), BY_MARKS, blocks)
    if processor is None and chart is None:
        why = f"the device's own time: {clocks.why}" if clocks.why is not None else _NOT_RECORDED
        return Absent("Device use", (use.why if use is not None else None) or why)
    title = "There was no GPU: cores are shown in its place"
    if clocks.why is not None:
        title = f"The device's own time cannot be told: {clocks.why}"
    elif processor is not None and processor.utilisation is not None:
        many = with_unit(processor.cores, "cores")
        title = f"The loop's threads use {percent(processor.utilisation)} of {many}"
    blocks = [cores, *([chart] if chart else []), *([_cores_table(processor)] if processor else [])]
    definition = f"{as_sentence(processor.definition)}." if processor else ""
    return Section("device", "Device use", title, definition, blocks)


def _tell_idle(use: DeviceUse) -> str:
    """`; it is idle 43.4 %, most of that waiting for data`; the verdict above has said the rest."""
    longest = max(use.idle.causes, key=lambda cause: cause.idle_ns, default=None) if use.idle else None
    if use.idle is None or longest is None or not longest.idle_ns:
        return ""
    return f"; the device is idle {percent(use.idle.total)}, most of that {_cause_words(longest.name)}"


def _use_blocks(use: DeviceUse, busy: Utilisation, judged: bool) -> Iterator[Block]:
    yield Facts(list(_busy_facts(busy)), full=False)
    yield Facts(list(_use_facts(use, judged)))
    if use.idle is not None:
        yield _window_chart(busy, use.idle)
        yield _figures_table(use, busy, use.idle)
        yield _window_table(busy, use.idle)
    if len(use.devices) > 1:
        yield _devices_table(use.devices)
    if use.blame:
        yield _blame_table(use.blame, use.steps is not None)
    if use.breakdown is not None:
        yield _roles_table(use.breakdown)
    for kind, parts in (("phase", use.per.phase), ("stage", use.per.stage), ("module", use.per.module)):
        if parts:
            yield _parts_table(kind, parts, use.steps is not None)
    if use.per_step:
        yield _steps_chart(use.per_step)
        yield _steps_table(use.per_step)
    if use.kernels:
        yield _kernels_table(use.kernels, use.steps is not None)
    if use.copies is not None and use.copies.rows:
        yield _copies_table(use.copies.rows)
    if use.cores is not None:
        yield from _counter_tables(use.cores)


def _cause_words(name: str) -> str:
    return IDLE_CAUSES[name][0] if name in IDLE_CAUSES else name


def _to_ms(length_ns: float | None) -> float | None:
    return None if length_ns is None else length_ns / 1e6


def _busy_facts(busy: Utilisation) -> Iterator[Fact]:
    if busy.kernels is None:
        yield Fact("device use", CANNOT_TELL, "strong")
        return
    shares = [("kernels", busy.kernels, busy.kernels_ns, busy.window_ns)]
    if busy.with_copies is not None:
        window_ns = busy.with_copies_window_ns
        shares.append(("kernels and copies", busy.with_copies, busy.with_copies_ns, window_ns))
    for words, share, part_ns, window_ns in shares:
        times = f"{part_ns / 1e6:,.3f} of {window_ns / 1e6:,.3f} ms"
        yield Fact("device use", f"{words} ran {100 * share:.2f} % of the time ({times})", "strong")
    yield Fact("device use", f"window: {busy.window}")


def _use_facts(use: DeviceUse, judged: bool) -> Iterator[Fact]:
    """Estimates, what was decided from all figures, and what they leave out."""
    estimates = (("SM efficiency", use.sm_efficiency), ("occupancy", use.occupancy))
    yield Fact("estimated", "; ".join(_estimate_words(words, part) for words, part in estimates if part))
    tensor = use.tensor_cores_by_name
    if tensor is not None and tensor.value is not None:
        named = "of kernel time in kernels named after tensor-core instructions"
        yield Fact("estimated", f"{percent(tensor.value)} {named}")
    if use.verdict is not None and judged:
        yield Fact("limited by", use.verdict.sentence, "strong")
        yield Fact("evidence", "; ".join(use.verdict.evidence))
    talk = use.communication
    if talk is not None and talk.busy_ns:
        exposed = f"{talk.exposed_ns / 1e6:,.3f} ms of it exposed: no other kernel ran meanwhile"
        yield Fact("exchange", f"{talk.busy_ns / 1e6:,.3f} ms of communication, {exposed}")
    if use.straggler is not None:
        yield Fact("ranks", use.straggler.why)
    for remark in use.honesty.remarks if use.honesty is not None else ():
        yield Fact("honesty", remark, "warn")


def _estimate_words(words: str, part: DeviceEstimate) -> str:
    return f"{words} {CANNOT_TELL}: {part.why}" if part.value is None else f"{words} {100 * part.value:.2f} %"


def _processor_facts(processor: ProcessorUse | None) -> Iterator[Fact]:
    if processor is None or processor.cores_busy is None:
        return
    used = f"{number(processor.cores_busy)} cores busy"
    if processor.utilisation is not None:
        used += f" of {number(processor.cores, 0)}: {percent(processor.utilisation)}"
    spent, wall = (number(_to_ms(ns), 3) for ns in (processor.processor_ns, processor.wall_ns))
    yield Fact("cores", f"{used} ({spent} ms of processor time in {wall} ms, {processor.n} steps)")
    phases = ", ".join(f"{phase.name} {number(phase.cores_busy)}" for phase in processor.phases)
    if phases:
        yield Fact("cores", f"cores busy by phase: {phases}")


def _window_chart(busy: Utilisation, idle: IdleTime) -> Chart:
    lost = {cause.name: cause.idle_ns / 1e6 for cause in idle.causes}
    kernels, window = busy.kernels_ns / 1e6, busy.window_ns / 1e6
    parts = [("kernels", kernels, BLUE)]
    parts.append(("copies alone", max(0.0, window - kernels - sum(lost.values())), GREEN))
    parts += [
        (f"idle: {words}", lost[name], colour)
        for name, (words, colour) in IDLE_CAUSES.items()
        if lost.get(name)
    ]
    label = "The device's time: kernels, copies, idle by cause"
    return Chart(
        "device-time", label, one_bar(parts), Axis("ms of the window"), Axis(hidden=True), height=170
    )


def _figures_table(use: DeviceUse, busy: Utilisation, idle: IdleTime) -> Table:
    whole_ns, words = busy.with_copies_window_ns, busy.definition
    figures: list[tuple[str, float | None, float | None, float | None, str]] = [
        ("kernels", busy.kernels, busy.kernels_ns, busy.window_ns, words.kernels),
        ("with copies", busy.with_copies, busy.with_copies_ns, whole_ns, words.with_copies),
        ("copies", busy.copies, busy.copies_ns, whole_ns, words.copies),
        ("compute", busy.compute, busy.compute_ns, whole_ns, words.compute),
    ]
    figures += [
        (f"{name} (estimated)", one.value, one.numerator_ns, one.denominator_ns, one.why or one.definition)
        for name, one in (("SM efficiency", use.sm_efficiency), ("occupancy", use.occupancy))
        if one is not None
    ]
    figures += [
        (
            f"idle: {_cause_words(cause.name)}",
            cause.share,
            cause.idle_ns,
            idle.window_ns,
            cause.definition,
        )
        for cause in idle.causes
    ]
    columns = [Column("figure"), Column("share", "share"), Column("numerator ms", "ms")]
    columns += [Column("denominator ms", "ms"), Column("definition", "sentence")]
    body: list[list[Value]] = [
        [name, share, _to_ms(part_ns), _to_ms(of_ns), definition]
        for name, share, part_ns, of_ns, definition in figures
    ]
    return Table("device-figures", "Numerators and denominators", columns, body)


def _window_table(busy: Utilisation, idle: IdleTime) -> Table:
    """The window as bars: busy first, then idle time by cause."""
    causes = {cause.name: cause for cause in idle.causes}
    body: list[list[Value]] = [["busy: kernels and copies", _to_ms(busy.with_copies_ns), idle.busy]]
    body += [
        [f"idle: {words}", _to_ms(causes[name].idle_ns), causes[name].share]
        for name, (words, _) in IDLE_CAUSES.items()
        if causes[name].idle_ns
    ]
    body.append(["window", _to_ms(idle.window_ns), ""])
    columns = [Column("what"), Column("ms", "ms"), Column("share", "share", bar=True)]
    caption = "Where the device's time went"
    return Table("device-window", caption, columns, body, brief_rows=len(body), full=False)


def _devices_table(devices: Sequence[DeviceFigures]) -> Table:
    columns = [Column("rank", "count"), Column("device", "count"), Column("kernels", "share")]
    columns += [Column("kernel ms", "ms"), Column("of ms", "ms"), Column("with copies", "share")]
    columns += [Column("busy ms", "ms"), Column("of ms", "ms"), Column("streams", "count", brief=False)]
    columns += [Column("events", "count", brief=False), Column("span ms", "ms", brief=False)]
    body: list[list[Value]] = [
        [
            *(row.rank, row.device, row.kernels, _to_ms(row.kernels_ns), _to_ms(row.window_ns)),
            *(row.with_copies, _to_ms(row.with_copies_ns), _to_ms(row.with_copies_window_ns)),
            *(row.streams, row.events, _to_ms(row.span.span_ns)),
        ]
        for row in devices
    ]
    return Table("devices", "Devices", columns, body, brief_rows=len(body))


def _blame_table(blame: Sequence[IdleBlame], per_step: bool) -> Table:
    cost = "idle ms/step" if per_step else "idle ms"
    columns = [Column("call", "code"), Column("cause"), Column("where", "code"), Column(cost, "ms")]
    columns += [Column("share", "share"), Column("times", "count")]
    body: list[list[Value]] = []
    for row in blame[:MOST_BLAMED]:
        where = [part for part in (row.module, row.inside, row.line) if part] or [row.runtime or "-"]
        spent_ms = row.idle_ms_per_step if per_step else row.idle_ms
        body.append([row.call, _cause_words(row.cause), "; ".join(where), spent_ms, row.share, row.gaps])
    return Table("blame", "Who made the device wait", columns, body, brief_rows=BRIEF_ROWS)


def _roles_table(breakdown: StepBreakdown) -> Table:
    body: list[list[Value]] = [[role.name, role.average_us, role.share] for role in breakdown.roles]
    body.append(["step", breakdown.average_step_us, ""])
    columns = [Column("role"), Column("us", "number"), Column("share", "share")]
    caption = "Average step by role, as TensorBoard counted it"
    return Table("device-roles", caption, columns, body, brief_rows=len(body))


def _parts_table(kind: str, parts: Sequence[PartUse], per_step: bool) -> Table:
    columns = [Column(kind, "code"), Column("kernels", "ms"), Column("busy", "ms")]
    columns += [Column("idle before", "ms"), Column("use", "share"), Column("launches", "number")]
    body: list[list[Value]] = [
        [row.name or "(none)", row.kernels_ms, row.busy_ms, row.idle_ms, row.use, row.launches]
        for row in parts
    ]
    caption = f"Device use by {kind}{', ms per step' if per_step else ', ms'}"
    return Table(f"device-{kind}", caption, columns, body, searchable=True, brief_rows=BRIEF_ROWS)


def _steps_chart(steps: Sequence[DeviceStep]) -> Chart:
    at = [float(row.step) for row in steps]
    lines = []
    for name, colour, shares in (
        ("kernels", BLUE, [row.kernels for row in steps]),
        ("with copies", GREEN, [row.with_copies for row in steps]),
    ):
        numbers, values = thinned(at, [100 * (share or 0.0) for share in shares])
        lines.append(Series(name, numbers, values, colour, "both"))
    axes = Axis("step"), Axis("% of the step", lowest=0, highest=105)
    return Chart("device-steps", "Device use step by step", lines, *axes)


def _steps_table(steps: Sequence[DeviceStep]) -> Table:
    several = len({(row.rank, row.device) for row in steps}) > 1
    columns = [Column("step", "count"), Column("rank", "count", brief=several)]
    columns += [Column("device", "count", brief=several), Column("ms", "ms"), Column("kernels", "share")]
    columns += [Column("with copies", "share"), Column(f"{_cause_words('data')} ms", "ms")]
    columns += [Column(f"{_cause_words(name)} ms", "ms") for name in ("synchronisation", "host")]
    body: list[list[Value]] = []
    for row in steps[:MOST_STEPS]:
        idle = row.idle_by_cause
        lost = (_to_ms(ns) for ns in (idle.data_ns, idle.synchronisation_ns, idle.host_ns))
        body.append(
            [row.step, row.rank, row.device, _to_ms(row.window_ns), row.kernels, row.with_copies, *lost]
        )
    few = 1 < len(steps) <= BRIEF_ROWS  # more are not read one by one
    return Table(
        "device-steps-table", "Steps of the device", columns, body, brief_rows=len(body) if few else 0
    )


def _kernels_table(kernels: Sequence[KernelFigures], per_step: bool) -> Table:
    columns = [Column("kernel", "code"), Column("operator", "code"), Column("launches", "number")]
    columns += [Column("ms", "ms"), Column("share", "share"), Column("occupancy %", "number")]
    columns += [
        Column("tensor"),
        Column("count", "count", brief=False),
        Column("total ms", "ms", brief=False),
    ]
    columns += [Column("median ms", "ms", brief=False), Column("whole name", "code", brief=False)]
    body: list[list[Value]] = [
        [
            *(row.short, row.operator or "-", row.launches, row.ms, row.share),
            "-" if row.occupancy is None else row.occupancy,
            "by name" if row.tensor_cores_by_name else "",
            *(row.count, _to_ms(row.total_ns), _to_ms(row.median_ns), row.name),
        ]
        for row in kernels[:MOST_KERNELS]
    ]
    caption = "Kernels by total time" + (", per step" if per_step else "")
    return Table("kernels", caption, columns, body, searchable=True, brief_rows=BRIEF_ROWS)


def _copies_table(copies: Sequence[CopyRow]) -> Table:
    columns = [Column("direction"), Column("host memory"), Column("count", "count"), Column("bytes", "bytes")]
    columns += [Column("ms", "ms"), Column("GB/s", "number"), Column("exposed ms", "ms")]
    body: list[list[Value]] = [
        [
            *(row.direction, row.memory or "-", row.count, row.bytes),
            *(_to_ms(row.total_ns), row.gb_per_s, _to_ms(row.exposed_ns)),
        ]
        for row in copies
    ]
    return Table("copies", "Copies and memory sets", columns, body, brief_rows=len(body))


def _counter_tables(cores: CoreUse) -> Iterator[Table]:
    """Pipes, or the throughputs there are; a page has all counters."""
    shown = cores.pipes or tuple(one for one in cores.counters if "hroughput" in one.name)
    if shown:
        caption = f"Core use, {number(cores.kernels, 0)} kernels, weighted by cycles"
        yield _counters_table("cores", caption, shown, brief=True)
    if cores.counters:
        yield _counters_table(
            "counters", "All counters in per cent of their peak", cores.counters, brief=False
        )


def _counters_table(name: str, caption: str, counters: Sequence[CounterFigures], brief: bool) -> Table:
    columns = [Column("pipe or counter", "code"), Column("of kernel time", "number")]
    columns += [
        Column("of the window", "share"),
        Column("coverage", "share"),
        Column("n", "count", brief=False),
    ]
    body: list[list[Value]] = [
        [
            one.name,
            CANNOT_TELL if one.value is None else f"{100 * one.value:.2f} %",
            CANNOT_TELL if one.of_window is None else one.of_window,
            *(one.coverage, one.n),
        ]
        for one in counters
    ]
    return Table(name, caption, columns, body, searchable=not brief, brief_rows=len(body) if brief else 0)


def _cores_table(processor: ProcessorUse) -> Table:
    columns = [Column("phase"), Column("cores busy", "number"), Column("of all cores", "share")]
    columns += [Column("processor ms", "ms"), Column("wall ms", "ms"), Column("n", "count")]
    body: list[list[Value]] = [
        [row.name, row.cores_busy, row.utilisation, _to_ms(row.processor_ns), _to_ms(row.wall_ns), row.n]
        for row in processor.phases
    ]
    whole_ms = _to_ms(processor.processor_ns), _to_ms(processor.wall_ns)
    body.append(["step", processor.cores_busy, processor.utilisation, *whole_ms, processor.n])
    return Table("processor", "Cores in the place of a device", columns, body)


PART = SectionPart("device", 100, section, order_in={"import": 12}, unasked=("eval",))
