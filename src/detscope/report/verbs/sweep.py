"""A sweep: what ran, how it ended, curves over the batch size, failures, every trial, environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath

from detscope.analyze.sweep.figures import SweepForecast, SweepGroup, SweepPoint, SweepRow, SweepSummary
from detscope.report.colours import PALETTE
from detscope.report.figures import count, number, with_unit
from detscope.report.model import (
    SEARCHED_ROWS,
    Absent,
    Axis,
    Block,
    Chart,
    Column,
    Fact,
    Facts,
    Kind,
    Notes,
    Section,
    Series,
    Table,
    Value,
    make_table,
)
from detscope.report.progress import duration_text
from detscope.report.render.page import render_page
from detscope.report.verbs.sweep_overview import overview_section, rank_groups
from detscope.runs.atomic import write_text

MOST_FAILURES = 500
_DASHES = ("solid", "dash", "dot", "dashdot")
_BRIEF_STOPS = 3
_MANY = 24  # lines of which a legend still helps
_ENDING = {"name": Column("status"), "trials": Column("trials", "count")}
_AXIS = {"name": Column("axis"), "values": Column("values", "sentence")}
_FACT = {"name": Column("what"), "text": Column("value", "sentence")}
_TRIAL = {"name": Column("Network", "code"), "stage": Column("stage"), "device": Column("device")}
_FAILURE = {**_TRIAL, "batch_size": Column("batch", "count"), "status": Column("status", "sentence")}
_FAILURE |= {"message": Column("its last words", "sentence")}
Reader = Callable[[SweepPoint], float | None]


def write_sweep_page(summary: SweepSummary, store: Path, target: Path | None = None) -> Path:
    """Write the page of a sweep beside its store, or where asked."""
    path = target or store.with_name(f"{store.stem}-report.html")
    found = sweep_sections(summary)
    sections = [section for section in found if isinstance(section, Section)]
    absent = [section for section in found if isinstance(section, Absent)]
    devices = ", ".join(row.device for row in summary.devices)
    plans = ", ".join(dict.fromkeys(plan.name or "" for plan in summary.plans))
    subtitle = f"sweep{f' on {devices}' if devices else ''}, {store.name}"
    made = "Made by detscope from this sweep's store. The file needs no network and sends nothing."
    write_text(path, render_page(plans or store.name, subtitle, sections, absent, made))
    return path


def sweep_sections(summary: SweepSummary) -> list[Section | Absent]:
    """Everything that a sweep tells."""
    found = [overview_section(summary), *_curve_sections(summary.groups), _size_section(summary)]
    found += [_failure_section(summary.failed_rows)] if summary.failed_rows else []
    return [*found, _result_section(summary.rows), _method_section(summary)]


def place_sections(summary: SweepSummary) -> list[Section]:
    """Where a sweep and its pictures are, and what to do with them."""
    store = summary.store
    facts = [Fact("store", store, stays=True)]
    if summary.pictures:
        facts.append(Fact("pictures", f"{len(summary.pictures)} in {PurePath(summary.pictures[0]).parent}"))
    facts.append(Fact("next", f"detscope report {store}, or detscope fit {store} --out MY.model", stays=True))
    return [Section("files", "Files", store, "", [Facts(facts)])]


def forecast_sections(found: SweepForecast) -> list[Section]:
    """What a plan would do."""
    facts = [Fact("plan", f"{found.plan}: {found.trials} trials, {found.excluded} excluded")]
    facts += [Fact("device", f"{row.device}: {row.trials} to run") for row in found.devices]
    facts += [Fact("cannot run", f"{row.trial}: {row.why}", "warn") for row in found.cannot_run]
    facts.append(Fact("time", f"about {duration_text(found.estimated_s)} ({found.estimated_from})"))
    facts.append(Fact("disk", f"{with_unit(found.disk_bytes, 'bytes')} in {found.store}"))
    return [Section("plan", "Plan", found.plan, "", [Facts(facts)])]


def _curve_sections(groups: Sequence[SweepGroup]) -> Iterator[Section | Absent]:
    """Throughput, latency and memory against the batch size, or why one is not there."""
    yield _throughput_section(groups)
    yield _latency_section(groups)
    yield _memory_section(groups)


def _latency_section(groups: Sequence[SweepGroup]) -> Section | Absent:
    curves = _read_curves(groups, lambda point: point.step_ms)
    if not curves:
        return Absent("Latency", "no trial measured it: variables = latency")
    series = [_curve_series(place, *curve, "ms", ends=True) for place, curve in enumerate(curves)]
    blocks: list[Block] = [_curve_chart("latency", "Time of a step against batch size", series, "ms, median")]
    unstable = {
        group.name: [point.batch_size for point in group.points if point.unstable] for group, _ in curves
    }
    marked = sum(len(batches) for batches in unstable.values())
    if marked:
        text = f"{marked} points are open circles: unsteady, or a limit ended them with a wide interval"
        blocks.append(Notes([text]))
    table = _curve_table("latency-table", "Median step in ms, by batch size", curves, "ms", unstable)
    (best, point), value = min(_all_points(curves), key=lambda found: found[1])
    title = f"The fastest step takes {number(value)} ms: {best.name} at batch {point.batch_size}"
    text = (
        "Median with its 95 % interval as a bar. Both axes are logarithmic: a straight line is a power law."
    )
    return Section("latency-section", "Latency", title, text, [*blocks, table])


def _memory_section(groups: Sequence[SweepGroup]) -> Section | Absent:
    kinds: list[tuple[str, str, Reader]] = [
        ("allocated", "allocated: highest sum of live tensors", lambda point: point.allocated_bytes),
        ("process", "process: resident peak", lambda point: point.process_bytes),
    ]
    blocks: list[Block] = []
    title = ""
    for name, words, read in kinds:
        curves = _read_curves(groups, read)
        if not curves:
            continue
        series = [_curve_series(place, *curve, "MB", scale=1e-6) for place, curve in enumerate(curves)]
        blocks.append(_curve_chart(name, f"Peak memory against batch size, {words}", series, "MB"))
        blocks.append(_curve_table(f"{name}-table", f"Peak by batch size, {words}", curves, "bytes", {}))
        (most, point), value = max(_all_points(curves), key=lambda found: found[1])
        title = title or f"The most: {value / 1e6:,.0f} MB, {most.name} at batch {point.batch_size}"
    if not blocks:
        return Absent("Memory", "no trial measured it: variables = memory")
    text = "Allocated and process memory are two figures and never mixed; both axes are logarithmic."
    return Section("memory-section", "Memory", title, text, blocks)


def _throughput_section(groups: Sequence[SweepGroup]) -> Section | Absent:
    curves = _read_curves(groups, lambda point: point.images_per_s)
    if not curves:
        return Absent("Throughput", "no trial measured latency")
    series = [_curve_series(place, *curve, "images/s") for place, curve in enumerate(curves)]
    shown = [group for group, _ in curves]
    columns = [Column("Network", "code"), Column("best images/s", "number"), Column("at batch", "count")]
    columns += [Column("a larger batch stops to pay at", "count"), Column("parameters", "count")]
    body = [
        [
            group.name,
            group.best_images_per_s,
            group.best_batch,
            "not among these" if group.stops_to_pay_at is None else group.stops_to_pay_at,
            group.parameters,
        ]
        for group in shown
    ]
    stopped = [group for group in rank_groups(shown) if group.stops_to_pay_at is not None]
    stops = [
        Fact(
            "pays",
            f"{group.name}: beyond batch {group.stops_to_pay_at} images/s gain less than 5 % per doubling"
            f" (best {number(group.best_images_per_s)} at {group.best_batch})",
        )
        for group in stopped[:_BRIEF_STOPS]
    ]
    if len(stopped) > _BRIEF_STOPS:
        stops.append(Fact("pays", f"and {count(len(stopped) - _BRIEF_STOPS)} more stop to pay"))
    title = "The largest batch still pays for every network"
    if stopped:
        others = f", and {count(len(stopped) - 1)} more stop to pay" if len(stopped) > 1 else ""
        title = f"{stopped[0].name} gains little beyond batch {stopped[0].stops_to_pay_at}{others}"
    caption = "Where a larger batch stops to pay"
    blocks: list[Block] = [
        _curve_chart("throughput", "Images per second against batch size", series, "images per second"),
        Facts(stops, full=False),
        Table("throughput-table", caption, columns, body, searchable=len(body) > SEARCHED_ROWS),
    ]
    text = "A larger batch pays while it gains 5 % images/s per doubling."
    return Section("throughput-section", "Throughput", title, text, blocks)


def _size_section(summary: SweepSummary) -> Section | Absent:
    points = summary.pareto
    if not points:
        return Absent("Speed against size", "needs latency and the number of parameters")
    series = []
    for place, stage in enumerate(sorted({point.stage for point in points})):
        own = [point for point in points if point.stage == stage]
        front = sorted((point.parameters / 1e6, point.images_per_s) for point in own if point.front)
        colour = PALETTE[place % len(PALETTE)]
        across, up = [x for x, _ in front], [y for _, y in front]
        series.append(Series(f"{stage}: none is faster and larger", across, up, colour, silent=True))
        texts = [
            f"{point.name}: {point.parameters / 1e6:.2f} M parameters, {point.images_per_s:.1f} images/s"
            for point in own
        ]
        across, up = [point.parameters / 1e6 for point in own], [point.images_per_s for point in own]
        names = [point.name for point in own] if len(points) <= _MANY else ()
        series.append(Series(stage, across, up, colour, "points", texts=names, details=texts))
    columns = [Column("Network", "code"), Column("stage"), Column("parameters", "count")]
    columns += [Column("best images/s", "number"), Column("on the front")]
    body = [
        [point.name, point.stage, point.parameters, point.images_per_s, "yes" if point.front else ""]
        for point in points
    ]
    chart = Chart(
        "size",
        "Speed against size",
        series,
        Axis("million parameters", "log"),
        Axis("best images per second", "log"),
        height=420,
        legend="bottom",
        file="pareto",
    )
    on_front = sum(point.front for point in points)
    return Section(
        "size-section",
        "Speed against size",
        f"{on_front} of {len(points)} networks are on the front: to be faster, one must be smaller",
        "Best images/s of each network against its parameters.",
        [chart, Table("size-table", "Speed and size", columns, body, searchable=len(body) > SEARCHED_ROWS)],
    )


Curve = tuple[SweepGroup, list[tuple[SweepPoint, float]]]


def _read_curves(groups: Sequence[SweepGroup], read: Reader) -> list[Curve]:
    """The points of every group that have a figure; groups without any are left out."""
    found = []
    for group in groups:
        points = [
            (point, value) for point in group.points if (value := read(point)) is not None and value > 0
        ]
        if points:
            found.append((group, points))
    return found


def _all_points(curves: Sequence[Curve]) -> list[tuple[tuple[SweepGroup, SweepPoint], float]]:
    return [((group, point), value) for group, points in curves for point, value in points]


def _curve_series(
    place: int,
    group: SweepGroup,
    points: Sequence[tuple[SweepPoint, float]],
    unit: str,
    *,
    scale: float = 1.0,
    ends: bool = False,
) -> Series:
    values = [round(value * scale, 6) for _, value in points]
    batches = [point.batch_size for point, _ in points]
    above = [_gap_between(point.step_high_ms, value) for point, value in points] if ends else []
    below = [_gap_between(value, point.step_low_ms) for point, value in points] if ends else []
    return Series(
        group.name,
        batches,
        values,
        PALETTE[place % len(PALETTE)],
        "both",
        dash=_DASHES[place // len(PALETTE) % len(_DASHES)],  # type: ignore[arg-type]
        details=[
            f"{group.name}, batch {batch}: {value:.4g} {unit}"
            for batch, value in zip(batches, values, strict=True)
        ],
        hollow=[point.unstable for point, _ in points] if ends else (),
        error_up=above if any(above) else (),
        error_down=below if any(above) else (),
    )


def _gap_between(high: float | None, low: float | None) -> float:
    return round(max(0.0, high - low), 6) if high is not None and low is not None else 0.0


def _curve_chart(name: str, label: str, series: Sequence[Series], unit: str) -> Chart:
    batches = sorted({float(x) for one in series for x in one.x})
    few = len(series) <= _MANY
    return Chart(
        name,
        label,
        series,
        Axis("batch size", "log", ticks=batches),
        Axis(unit, "log"),
        height=420 + (24 * (len(series) // 4 + 1) if few else 0),
        legend="bottom" if few else "none",
        file=name,
    )


def _curve_table(
    name: str, caption: str, curves: Sequence[Curve], kind: Kind, unstable: dict[str, list[int]]
) -> Table:
    batches = sorted({point.batch_size for _, points in curves for point, _ in points})
    columns = [Column("Network", "code"), *(Column(f"batch {batch:,}", kind) for batch in batches)]
    marked = any(unstable.values())
    columns += [Column("read with care at batch")] if marked else []
    body = []
    for group, points in curves:
        at = {point.batch_size: value for point, value in points}
        care = [", ".join(map(str, unstable.get(group.name, ())))] if marked else []
        body.append([group.name, *(at.get(batch) for batch in batches), *care])
    return Table(name, caption, columns, body, searchable=len(body) > SEARCHED_ROWS)


def _failure_section(failures: Sequence[SweepRow]) -> Section:
    shown = failures[:MOST_FAILURES]
    blocks: list[Block] = [make_table("failures-table", "Not measured, and why", shown, _FAILURE)]
    if len(failures) > MOST_FAILURES:
        blocks.append(Notes([f"and {len(failures) - MOST_FAILURES} more: detscope sweep export"]))
    networks = len({row.network for row in failures})
    title = f"{count(len(failures))} trials of {count(networks)} networks gave no figure"
    text = "Out of memory, a time limit, a signal or an exception; what was skipped says after which failure."
    return Section("failures", "Failures", title, text, blocks)


def _result_section(rows: Sequence[SweepRow]) -> Section:
    columns = [
        Column("Network", "code"),
        Column("stage"),
        Column("device", brief=False),
        Column("batch", "count"),
        Column("step ms", "ms"),
        Column("95 % interval", brief=False),
        Column("interval", "number"),
        Column("images/s", "number"),
        Column("allocated", "bytes"),
        Column("reserved", "bytes", brief=False),
        Column("process", "bytes", brief=all(row.allocated_bytes is None for row in rows)),
        Column("steadiness", brief=False),
        Column("status", "sentence", brief=any(row.kind != "ok" for row in rows)),
    ]
    body: list[list[Value]] = [
        [
            row.name,
            row.stage,
            row.device,
            row.batch_size,
            row.step_ms,
            None
            if row.step_low_ms is None or row.step_high_ms is None
            else f"[{number(row.step_low_ms)}, {number(row.step_high_ms)}]",
            _width_text(row),
            row.images_per_s,
            row.allocated_bytes,
            row.reserved_bytes,
            row.process_bytes,
            f"wide, stopped by {row.stopped_by}" if row.interval_reached == 0 else row.stability or "",
            row.status,
        ]
        for row in rows
    ]
    table = Table("results-table", "Every trial", columns, body, searchable=True, brief_rows=len(body))
    blocks: list[Block] = [table]
    if any(row.interval_reached == 0 for row in rows):
        text = "width of the 95 % interval of the median; !  a limit came before it was narrow enough"
        blocks.append(Facts([Fact("interval", text)]))
    return Section("results", "Every trial", f"{count(len(body))} results, one row each", "", blocks)


def _width_text(row: SweepRow) -> str:
    if row.interval_width is None:
        return ""
    return f"{100 * row.interval_width:.1f} %" + ("" if row.interval_reached else " !")


def _method_section(summary: SweepSummary) -> Section:
    environments = summary.environments
    blocks: list[Block] = [
        make_table("axes", "What was varied", summary.axes, _AXIS),
        make_table("endings", "How trials ended", summary.endings, _ENDING),
    ]
    for place, environment in enumerate(environments, 1):
        caption = f"Environment {place} of {len(environments)}: {count(environment.rows)} results"
        blocks.append(make_table(f"environment-{place}", caption, environment.facts, _FACT))
    if summary.first_ended_at is not None:
        blocks.append(
            Notes([f"results arrived between {summary.first_ended_at} and {summary.last_ended_at} (UTC)"])
        )
    title = "Measured in one environment" if len(environments) == 1 else f"{len(environments)} environments"
    text = (
        "Every trial ran in a process of its own. Latency: steps until the 95 % interval of their median was"
        " as narrow as asked for, or until a limit came first, which is marked. Memory: allocated is the"
        " highest sum of live tensors, process the resident peak."
    )
    return Section("method", "How it was measured", title, text, blocks)
