"""Memory: a step's timeline by category, and the peak as a map of category, module and tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from detscope.analyze.advice.case import Advice
from detscope.analyze.drawing import ReportData
from detscope.analyze.memory.figures import MemoryAccount, OutOfMemory, PassMemory, category_name
from detscope.analyze.memory.timeline import MemoryTimeline, PeakTree, peak_tree, step_timeline
from detscope.report.colours import CATEGORY_COLOURS, GREY, paler
from detscope.report.figures import CANNOT_TELL, number, percent, with_unit
from detscope.report.model import (
    BRIEF_ROWS,
    Absent,
    Axis,
    Block,
    Chart,
    Column,
    Fact,
    Facts,
    Mark,
    Section,
    Series,
    Table,
    Tree,
    Value,
)
from detscope.report.sections import SectionPart

LEAVES_ON_THE_MAP = 400
SMALLEST_ON_THE_MAP = 0.001  # share of the peak: of 1,000 by 420 pixels, a square of 20
WORKERS_SHOWN = 8


def section(data: ReportData) -> Section | Absent:
    """What the peak is made of."""
    account: MemoryAccount | None = data.summary.memory
    if account is None:
        told: PassMemory | None = data.summary.pass_memory
        if told is not None and told.peak_bytes is not None:
            return _section_of_pass(told)
        return Absent("Memory", (told and told.why) or "record it with --memory")
    blocks: list[Block] = [Facts(list(_peak_facts(account)), full=False)]
    side = data.summary.find_side_steps("memory")
    timeline = step_timeline(data.run)
    if timeline is not None:
        blocks.append(_timeline_chart(timeline))
    blocks.append(_categories_table(account))
    tree = peak_tree(data.run)
    if tree is not None:
        blocks.append(_peak_chart(tree))
    blocks += [table for table in (_modules_table(account), _tensors_table(account)) if table.rows]
    blocks += [
        Facts(list(_level_facts(account))),
        advice_table(data.summary.advice),
        _tried_table(account),
    ]
    if account.oom is not None:
        blocks.append(Facts(list(_oom_facts(account.oom))))
    return Section(
        "memory",
        "Memory",
        _headline(account),
        "Allocated bytes of live tensors, shared storage counted once; reserved (the allocator's) and"
        " process memory are other figures and never mixed with it."
        + (f" Moments are those of the {side.words}." if side is not None else ""),
        [block for block in blocks if not isinstance(block, Table) or block.rows],
    )


def _headline(account: MemoryAccount) -> str:
    top = max(account.categories, key=lambda category: category.bytes)
    share = percent(top.bytes / account.peak_bytes) if account.peak_bytes else percent(0.0)
    where = account.at.module or account.at.phase
    peak = with_unit(account.peak_bytes, "bytes")
    told = f"The peak is {peak}{f' in {where}' if where else ''}"
    if top.name == "unknown" and top.bytes == account.peak_bytes:
        return f"{told}; what it is made of was not recorded"
    return f"{told}: {share} of it {category_name(top.name)}"


def _peak_facts(account: MemoryAccount) -> Iterator[Fact]:
    at, steps, slope = account.at, account.steps, account.slope
    place = ", ".join(part for part in (at.phase, at.module, at.operator) if part)
    text = "peak " + ("at least " if account.lower_bound_why else "") + with_unit(account.peak_bytes, "bytes")
    text += f" in {place}" if place else ""
    text += f", step {at.step}" if at.step is not None else ""
    text += f", {with_unit(at.ms_into_step, 'ms')} into it" if at.ms_into_step is not None else ""
    yield Fact("memory", text, "strong")
    if account.lower_bound_why:
        yield Fact("", f"the true peak may be higher: {account.lower_bound_why}", "warn")
    if steps is not None and steps.p50_bytes is not None and steps.n > 1:
        low, high = with_unit(steps.lowest_bytes, "bytes"), with_unit(steps.highest_bytes, "bytes")
        yield Fact(
            "", f"median of {steps.n} steps' peaks {with_unit(steps.p50_bytes, 'bytes')}, {low} to {high}"
        )
    if slope is not None:
        fixed = with_unit(slope.fixed_bytes, "bytes")
        yield Fact("", f"{with_unit(slope.bytes_per_image, 'bytes')} per image, {fixed} without any")


def _timeline_chart(timeline: MemoryTimeline) -> Chart:
    moments = [round(ms, 3) for ms in timeline.ms]
    lines = [
        Series(
            category_name(name),
            moments,
            [round(value / 1e6, 3) for value in values],
            CATEGORY_COLOURS.get(name, GREY),
            "area",
            width=0.5,
            steps=True,
        )
        for name, values in timeline.bytes.items()
    ]
    marks = [
        Mark(begin, name if end - begin > 0.06 * timeline.wall_ms else "")
        for name, begin, end in timeline.phases
    ]
    label = f"Allocated memory over step {timeline.step}, by category"
    axes = Axis("ms into the step"), Axis("MB")
    return Chart(
        "memory-timeline",
        label,
        lines,
        *axes,
        marks=marks,
        height=380,
        legend="bottom",
        file="memory_timeline",
    )


def _categories_table(account: MemoryAccount) -> Table:
    ordered = sorted(account.categories, key=lambda category: -category.bytes)
    whole = account.peak_bytes or 1
    rows: list[list[Value]] = [
        [category_name(one.name), one.bytes, one.bytes / whole]
        for one in ordered
        if one.bytes or one.name == "unknown"
    ]
    columns = [Column("category"), Column("size", "bytes"), Column("share", "share", bar=True)]
    caption = "What the peak is made of"
    return Table("memory-categories", caption, columns, rows, brief_rows=len(rows))


def _peak_chart(tree: PeakTree) -> Chart:
    """Category, inside it modules, inside them tensors."""
    values: dict[str, float] = {"peak": 0.0}
    labels, parents, colours = {"peak": "peak"}, {"peak": ""}, {"peak": "#5B6B7C"}

    def add_box(name: str, label: str, parent: str, colour: str, size: float) -> None:
        labels.setdefault(name, label)
        parents.setdefault(name, parent)
        colours.setdefault(name, colour)
        values[name] = values.get(name, 0.0) + size

    of_module: Counter[str] = Counter()
    for category, module, _, size in tree.leaves:
        of_module[f"{category} {module}"] += size
    least = SMALLEST_ON_THE_MAP * sum(of_module.values())
    small = Counter(name.partition(" ")[0] for name, size in of_module.items() if size < least)
    for index, (category, module, tensor, size) in enumerate(tree.leaves):
        colour = CATEGORY_COLOURS.get(category, GREY)
        inner = f"{category} {module}"
        add_box(category, category_name(category), "peak", colour, 0.0)
        shown = index < LEAVES_ON_THE_MAP and size >= least
        if of_module[inner] < least and small[category] > 1:
            inner, module, shown = f"{category} (smaller)", f"{small[category]:,} smaller modules", False
        add_box(inner, module, category, paler(colour, 0.3), 0.0 if shown else size)
        if shown:
            add_box(f"{inner} {tensor} #{index}", tensor, inner, paler(colour, 0.55), size)
    names = sorted(values, key=lambda name: (name != "peak", _depth_of(name, parents)))
    boxes = Tree(
        names,
        [labels[name] for name in names],
        [parents[name] for name in names],
        [values[name] for name in names],
        [colours[name] for name in names],
        "bytes",
        "the peak",
        "treemap",
    )
    label = "What is alive at the peak: category, module, tensor"
    return Chart("memory-map", label, boxes, height=420, file="memory_peak")


def _depth_of(name: str, parents: dict[str, str]) -> int:
    depth = 0
    while parents[name]:
        depth, name = depth + 1, parents[name]
    return depth


def _modules_table(account: MemoryAccount) -> Table:
    rows: list[list[Value]] = []
    for module in account.modules:
        parts = sorted(module.categories, key=lambda part: -part.bytes)
        text = ", ".join(f"{category_name(part.name)} {with_unit(part.bytes, 'bytes')}" for part in parts)
        rows.append([module.path, text, module.bytes, module.share, module.tensors])
    columns = [Column("module", "code"), Column("of which", "sentence"), Column("size", "bytes")]
    columns += [Column("share", "share"), Column("tensors", "count", brief=False)]
    caption = "Modules that hold most at the peak"
    return Table("memory-modules", caption, columns, rows, searchable=True, brief_rows=BRIEF_ROWS)


def _tensors_table(account: MemoryAccount) -> Table:
    rows: list[list[Value]] = [
        [
            " ".join(part for part in (row.shape, row.dtype) if part),
            row.module,
            row.operator or row.stack or row.name,
            category_name(row.category or "unknown"),
            row.bytes,
        ]
        for row in account.largest
    ]
    columns = [Column("tensor"), Column("module", "code"), Column("made by", "code"), Column("category")]
    columns.append(Column("size", "bytes"))
    return Table("memory-largest", "Largest tensors at the peak", columns, rows, brief_rows=BRIEF_ROWS)


def _level_facts(account: MemoryAccount) -> Iterator[Fact]:
    levels = account.levels
    yield Fact("allocated", with_unit(levels.allocated_bytes, "bytes") + " at most: live tensors")
    yield Fact("reserved", _level_text(levels.reserved_bytes, levels.reserved_why))
    gap = levels.fragmentation
    if gap is not None:
        free = ", ".join(with_unit(size, "bytes") for size in gap.largest_free_bytes)
        tail = f"; largest free blocks {free}" if free else ""
        cut_up = f", {percent(gap.share)} of it too cut up to serve one large request" if gap.share else ""
        yield Fact("", f"{with_unit(gap.bytes, 'bytes')} free and cached{cut_up}{tail}")
        if gap.fragmented_bytes is not None:
            yield Fact(
                "", f"{with_unit(gap.fragmented_bytes, 'bytes')} of these fragmented: between blocks in use"
            )
    if levels.context_bytes is not None:
        most = f", {with_unit(levels.beside_bytes, 'bytes')} at most"
        yield Fact(
            "context",
            f"{with_unit(levels.context_bytes, 'bytes')} at the start{most}: driver, libraries,"
            " and other processes on the device",
        )
    rise = levels.process_growth_bytes
    rose = f", {with_unit(rise, 'bytes')} above its begin" if rise is not None else ""
    yield Fact("process", _level_text(levels.process_bytes, levels.process_why) + rose)
    if levels.workers:
        sizes = ", ".join(with_unit(worker.bytes, "bytes") for worker in levels.workers[:WORKERS_SHOWN])
        left = len(levels.workers) - WORKERS_SHOWN
        yield Fact("workers", sizes + (f" and {left} more" if left > 0 else ""))
    for other in account.other_devices:
        yield Fact(other.device, f"peak {with_unit(other.peak_bytes, 'bytes')}")


def _level_text(size: int | None, why: str | None) -> str:
    return with_unit(size, "bytes") if size is not None else f"{CANNOT_TELL}: {why}"


def advice_table(advice: Sequence[Advice]) -> Table:
    """What would lower the peak: estimated by replay, or measured where --try ran it."""
    chosen = [row for row in advice if row.about == "memory" and row.worth]
    columns = [Column("saves"), Column("peak", "bytes"), Column("advice", "sentence")]
    columns += [Column("costs", "sentence"), Column("how", "code")]
    rows: list[list[Value]] = [
        [
            _tell_saving(row),
            row.peak_bytes if row.measured_peak_bytes is None else row.measured_peak_bytes,
            row.title,
            row.costs
            if row.measured_step_ratio is None
            else f"step {number(row.measured_step_ratio, 2)} x (measured); {row.costs}",
            row.how,
        ]
        for row in chosen
    ]
    return Table("memory-advice", "What would lower the peak", columns, rows, brief_rows=len(rows))


def _tell_saving(row: Advice) -> str:
    """What was measured stands in the place of what was estimated."""
    if row.measured_bytes is None:
        return ("at most " if row.at_most else "") + with_unit(row.saves_bytes, "bytes")
    if row.measured_bytes < 0:
        return f"nothing: {with_unit(-row.measured_bytes, 'bytes')} more (measured)"
    return f"{with_unit(row.measured_bytes, 'bytes')} (measured)"


def _tried_table(account: MemoryAccount) -> Table:
    columns = [Column("variant"), Column("predicted", "bytes"), Column("measured", "bytes")]
    columns += [Column("off by", "share"), Column("peak", "bytes"), Column("step"), Column("run", "sentence")]
    rows: list[list[Value]] = [
        [
            row.variant,
            row.predicted_saving_bytes,
            row.measured_saving_bytes,
            row.error_share,
            row.peak_bytes,
            f"{number(row.step_ratio, 2)} x" if row.step_ratio is not None else CANNOT_TELL,
            PurePath(row.run).name if row.run else row.why,
        ]
        for row in account.tried
    ]
    return Table("memory-tried", "Savings tried", columns, rows, brief_rows=len(rows))


def _oom_facts(oom: OutOfMemory) -> Iterator[Fact]:
    place = ", ".join(part for part in (oom.phase, oom.module) if part)
    request = with_unit(oom.request_bytes, "bytes") if oom.request_bytes is not None else "a request"
    where = f" in {place}" if place else ""
    text = f"{request} more did not fit{where}; {with_unit(oom.limit_bytes, 'bytes')} did"
    yield Fact("no memory", text, "bad")
    if oom.bytes_per_image is not None:
        image, fixed = with_unit(oom.bytes_per_image, "bytes"), with_unit(oom.fixed_bytes, "bytes")
        yield Fact("", f"an image takes about {image} beside {fixed} ({oom.basis})")
    else:
        yield Fact("", oom.basis)
    if oom.suggested_batch is not None:
        command = f": {oom.command}" if oom.command else ""
        yield Fact("try", f"batch {oom.suggested_batch}{command}", "strong")
    elif oom.why:
        yield Fact("try", oom.why)


def _section_of_pass(told: PassMemory) -> Section:
    """An inference without --memory measured a few passes by stage."""
    where = told.peak_at.module if told.peak_at else None
    peak = with_unit(told.peak_bytes, "bytes")
    text = f"peak {peak} in a pass" + (f", reached in {where}" if where else "")
    columns = [Column("Stage", "code"), Column("peak", "bytes"), Column("allocated", "bytes")]
    columns.append(Column("freed", "bytes"))
    rows: list[list[Value]] = [
        [stage.name, stage.peak_bytes, stage.allocated_bytes, stage.freed_bytes] for stage in told.stages
    ]
    depth = [stage.depth or 0 for stage in told.stages]
    largest: list[list[Value]] = [[row.operator, row.module, row.stage, row.bytes] for row in told.largest]
    made = [Column("operator", "code"), Column("module", "code"), Column("stage"), Column("size", "bytes")]
    return Section(
        "memory",
        "Memory",
        f"A forward pass allocates up to {peak} above what was there",
        told.what or "",
        [
            Facts([Fact("memory", text)], full=False),
            Table("memory-stages", "By stage, parts included", columns, rows, depth=depth),
            Table("memory-largest", "Largest allocations of a pass", made, largest, brief_rows=BRIEF_ROWS),
        ],
    )


PART = SectionPart("memory", 120, section, unasked=("eval", "import"))
