"""Device use on a terminal: how busy, how well used, who made it wait. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from detscope.report.figures import CANNOT_TELL, is_number, mapping, number, percent, plain, rows, sentences
from detscope.report.terminal_device_tables import (
    blame_table,
    breakdown_table,
    copies_table,
    cores_table,
    devices_table,
    idle_table,
    kernels_table,
    parts_table,
    steps_table,
)

Summary = Mapping[str, Any]
Line = tuple[str, str, str]


def device_name(summary: Summary) -> str | None:
    """The device's name, whether or not there are figures of its use."""
    device = summary.get("device")
    name = device.get("name") if isinstance(device, Mapping) else device
    return plain(name) if name else None


def has_device(summary: Summary) -> bool:
    """Whether there is something to show about device use."""
    return bool(mapping(summary, "device") or mapping(summary, "processor"))


def render_device(summary: Summary, console: Console) -> None:
    """Print the section on device use; nothing where there is none."""
    if not has_device(summary):
        return
    console.print()
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=11, no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for label, text, style in device_lines(summary):
        grid.add_row(label, Text(text, style=style))
    console.print(grid)
    for table in device_tables(summary, console.options.ascii_only):
        if table is not None:
            console.print()
            console.print(table)
    console.print()


def source_lines(summary: Summary) -> Iterator[Line]:
    """The files a run was imported from, in the place of a model's header."""
    for index, source in enumerate(rows(summary, "sources")):
        name = source.get("file") or source.get("source") or source.get("name") or CANNOT_TELL
        about = [plain(source[key]) for key in ("format", "device_name", "device") if source.get(key)]
        rank = f", rank {plain(source['rank'])}" if is_number(source.get("rank")) else ""
        yield (
            "files" if index == 0 else "",
            plain(name) + f" ({', '.join(about)}{rank})" * bool(about),
            "bold",
        )
    status = summary.get("status")
    if status != "ok":
        reason = f": {plain(summary['reason'])}" if summary.get("reason") else ""
        yield "status", plain(status or CANNOT_TELL) + reason, "bold red"
    steps = summary.get("steps")
    if is_number(steps):
        yield "steps", number(steps, 0), ""


def device_lines(summary: Summary) -> Iterator[Line]:
    """Utilisation with numerator and denominator, estimates, and what was decided from them."""
    device = mapping(summary, "device")
    if device and not rows(device, "devices"):
        yield "device use", f"{CANNOT_TELL}: {plain(device.get('why') or 'nothing was recorded')}", "yellow"
    use = mapping(device, "utilisation")
    if is_number(use.get("kernels")):
        yield "device use", _share(use, "kernels", "kernels_ns", "window_ns", "kernels"), "bold"
        whole = _share(use, "with_copies", "with_copies_ns", "with_copies_window_ns", "kernels and copies")
        yield "", whole, "bold"
        yield "", f"window: {plain(use.get('window'))}", "dim"
    yield from _estimate_lines(device)
    verdict = mapping(device, "verdict")
    if verdict.get("sentence"):
        yield "limited by", plain(verdict["sentence"]), "bold"
        yield "evidence", "; ".join(sentences(verdict, "evidence")), ""
    yield from _communication_lines(device)
    yield from _processor_lines(mapping(summary, "processor"))
    for index, remark in enumerate(sentences(mapping(device, "honesty"), "remarks")):
        yield "honesty" if index == 0 else "", remark, "yellow"


def _share(use: Mapping[str, Any], key: str, part: str, whole: str, words: str) -> str:
    times = f"{_ms(use.get(part))} of {_ms(use.get(whole))} ms"
    return (
        f"{words} ran {100 * use[key]:.2f} % of the time ({times})"
        if is_number(use.get(key))
        else CANNOT_TELL
    )


def _ms(value: Any) -> str:
    return f"{value / 1e6:,.3f}" if is_number(value) else number(value)


def _estimate_lines(device: Mapping[str, Any]) -> Iterator[Line]:
    if not rows(device, "devices"):
        return
    texts = []
    for key, words in (("sm_efficiency", "SM efficiency"), ("occupancy", "occupancy")):
        figure = mapping(device, key)
        if is_number(figure.get("value")):
            texts.append(f"{words} {100 * figure['value']:.2f} %")
        else:
            texts.append(f"{words} {CANNOT_TELL}: {plain(figure.get('why') or 'not recorded')}")
    yield "estimated", "; ".join(texts), ""
    tensor = mapping(device, "tensor_cores_by_name")
    if is_number(tensor.get("value")):
        yield (
            "",
            f"{percent(tensor['value'])} of kernel time in kernels named after tensor-core instructions",
            "",
        )


def _communication_lines(device: Mapping[str, Any]) -> Iterator[Line]:
    talk = mapping(device, "communication")
    if is_number(talk.get("busy_ns")) and talk["busy_ns"] > 0:
        exposed = f"{_ms(talk.get('exposed_ns'))} ms of it exposed: no other kernel ran meanwhile"
        yield "exchange", f"{_ms(talk['busy_ns'])} ms of communication, {exposed}", ""
    straggler = mapping(device, "straggler")
    if straggler.get("why"):
        yield "ranks", plain(straggler["why"]), ""


def _processor_lines(processor: Mapping[str, Any]) -> Iterator[Line]:
    if not is_number(processor.get("cores_busy")):
        return
    used = f"{number(processor['cores_busy'])} cores busy"
    if is_number(processor.get("utilisation")):
        used += f" of {number(processor.get('cores'), 0)}: {percent(processor['utilisation'])}"
    times = f"{_ms(processor.get('processor_ns'))} ms of processor time in {_ms(processor.get('wall_ns'))} ms"
    yield "cores", f"{used} ({times}, {number(processor.get('n'), 0)} steps)", ""
    phases = [
        f"{plain(row.get('name'))} {number(row.get('cores_busy'))}"
        for row in rows(processor, "phases")
        if is_number(row.get("cores_busy"))
    ]
    if phases:
        yield "", f"cores busy by phase: {', '.join(phases)}", ""


def device_tables(summary: Summary, ascii_only: bool) -> Iterator[Table | None]:
    """Idle time, blame, kernels, copies, parts; each only where there is something to show."""
    device = mapping(summary, "device")
    yield devices_table(device)
    yield idle_table(device, ascii_only)
    yield blame_table(device)
    yield breakdown_table(device)
    for part in ("phase", "stage", "module"):
        yield parts_table(device, part)
    yield steps_table(device)
    yield kernels_table(device)
    yield copies_table(device)
    yield cores_table(device)
