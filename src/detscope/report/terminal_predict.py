"""A prediction in the terminal: a row per batch size, what follows from them, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from detscope.report.figures import (
    CANNOT_TELL,
    cell,
    count,
    is_number,
    mapping,
    number,
    percent,
    plain,
    rows,
    sentences,
    with_unit,
)
from detscope.report.memory_colours import category_name
from detscope.report.terminal_tables import figure_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PARTS_SHOWN = 6
_LABEL_CELLS = 12
_SMALL_SHARE = 0.005
_STYLES = {"fits": "green", "too close to call": "yellow", "does not fit": "red"}
Found = Mapping[str, Any]
Lines = Iterator[tuple[str, str]]


def render(found: Found, console: Console) -> None:
    """Print all of a prediction."""
    console.print(heading(found), style="bold", markup=False, highlight=False, soft_wrap=True)
    console.print(_table(found))
    console.print()
    print_lines(console, beside_lines(found))
    print_lines(console, _answers(found))
    print_lines(console, _places(found))
    print_lines(console, _grounds(found))
    print_lines(console, _files(found))


def heading(found: Found) -> str:
    """What is predicted, and from what."""
    words = [f"{found.get('stage') or 'training'} step"]
    size = found.get("image_size")
    words += [f"{size[0]} x {size[1]} pixels"] if isinstance(size, list) and len(size) == 2 else []
    words += [str(found["optimizer"])] if found.get("optimizer") else []
    return f"{plain(found['network'])}: {', '.join(words)}, predicted"


def _table(found: Found) -> Table:
    shown = rows(found, "rows")
    timed = any(is_number(row.get("latency_ms")) for row in shown)
    whole = any(is_number(row.get("needed_bytes")) for row in shown)
    here = any("cpu_allocated_bytes" in row for row in shown)
    limited = is_number(found.get("limit_bytes"))
    figures = ["ms [90 %]", "images/s"] if timed else []
    figures += ["process [90 %]"] if whole else ["reserved"]  # a process holds what is reserved
    figures += ["allocated"] + (["on this CPU"] if here else [])
    table = figure_table("", ["batch"], figures)
    table.title = None
    table.columns[0].no_wrap = True
    table.padding = (0, 1, 0, 0)  # intervals are wide
    if limited:
        table.add_column("fits", no_wrap=True)
    for row in shown:
        cells = [ms_between(row), with_unit(row.get("images_per_s"), "")] if timed else []
        cells += [bytes_between(row) if whole else with_unit(row["reserved_bytes"], "bytes")]
        cells += [with_unit(row["allocated_bytes"], "bytes")]
        cells += [with_unit(row.get("cpu_allocated_bytes"), "bytes")] if here else []
        word = row["fits"].partition(": ")[0]
        fits = [cell(word.removesuffix(" to call"), _STYLES.get(word, ""))] if limited else []
        table.add_row(f"{row['batch']}{' *' if row['extrapolated'] else ''}", *cells, *fits)
    return table


def ms_between(row: Found) -> str:
    """`48.1 [40.2, 57.6]`."""
    ends = row.get("latency_ms_interval")
    if not is_number(row.get("latency_ms")) or ends is None:
        return CANNOT_TELL
    return f"{number(row['latency_ms'])} [{number(ends[0])}, {number(ends[1])}]"


def bytes_between(row: Found, key: str = "needed_bytes") -> str:
    """`1.52 [1.41, 1.63] GB`: all three in the unit of the first."""
    ends = row.get(f"{key}_interval")
    if not is_number(row.get(key)) or ends is None:
        return CANNOT_TELL
    middle, _, unit = with_unit(row[key], "bytes").rpartition(" ")
    size = {"GB": 1e9, "MB": 1e6, "kB": 1e3}.get(unit, 1.0)
    return f"{middle} [{number(ends[0] / size)}, {number(ends[1] / size)}] {unit}"


def _answers(found: Found) -> Lines:
    asked_of_a_run = "compared" in found
    if not asked_of_a_run or is_number(found.get("limit_bytes")):
        yield from _fitting(found)
    if asked_of_a_run:  # it has one batch size
        return
    best = found.get("best_batch_for_throughput")
    row = next((row for row in rows(found, "rows") if row["batch"] == best), None)
    if row is None:
        yield "best batch", f"{CANNOT_TELL}: {_why_no_latency(found)}"
    else:
        yield "best batch", f"{best} of those above, {number(row.get('images_per_s'))} images/s"


def _why_no_latency(found: Found) -> str:
    reasons = [
        text.partition(": ")[2] for text in sentences(found, "cannot_tell") if text.startswith("latency")
    ]
    return reasons[0] if reasons else "no batch above fits"


def _fitting(found: Found) -> Lines:
    limit = found.get("limit_bytes")
    if not is_number(limit):
        yield "fits", f"{CANNOT_TELL}: no memory limit; --memory-limit 8GiB"
        return
    room = with_unit(limit, "bytes")
    largest, first_out = (
        found.get(key) for key in ("largest_batch_that_fits", "smallest_batch_that_does_not_fit")
    )
    why = [row["fits"].partition(": ")[2] for row in rows(found, "rows") if ": " in row["fits"]]
    if largest:
        text = f"up to batch {count(largest)} in {room}"
    elif why:
        text = f"{CANNOT_TELL} what fits in {room}: {why[0]}"
    else:
        text = f"no batch surely fits in {room}"
    if first_out:
        text += f"; from batch {count(first_out)} on it does not"
        if largest and first_out > largest + 1:
            text += ", between them it is too close to call"
        elif why and not largest:
            text += ": the allocator alone needs more"
    yield "fits", text


def _places(found: Found) -> Lines:
    """Where time and memory are expected."""
    shown = rows(found, "rows")
    batch = found.get("places_at_batch") or max(row["batch"] for row in shown)
    if len(mapping(found, "latency_by_stage")) > 1:
        yield "time", f"at batch {batch}: {_top(found['latency_by_stage'], percent)}"
    for row in (row for row in shown if row["batch"] == batch):
        here = mapping(row, "cpu_categories")
        parts = here or mapping(row, "categories")
        where = "on this CPU" if here else "by CUDA's allocator"
        named = {category_name(name): size for name, size in parts.items()}
        yield "memory", f"peak at batch {row['batch']} {where}: {_top(named, _size, 8)}"
    made = "activations" if found.get("stage") != "inference" else "tensors made"
    if mapping(found, "memory_by_stage"):
        yield "", f"{made} at batch {batch}: {_top(found['memory_by_stage'], _size)}"


def _size(value: Any) -> str:
    return with_unit(value, "bytes")


def _top(parts: Mapping[str, Any], write: Any, most: int = _PARTS_SHOWN) -> str:
    """The largest parts; the others together, where they matter."""
    whole = sum(parts.values()) or 1
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    shown = [(name, size) for name, size in ordered[:most] if size / whole >= _SMALL_SHARE]
    rest = [size for _, size in ordered[len(shown) :]]
    words = [f"{plain(name)} {write(size)}" for name, size in shown]
    tail = [f"{len(rest)} more {write(sum(rest))}"] if sum(rest) / whole >= _SMALL_SHARE else []
    return ", ".join(words + tail)


def _grounds(found: Found) -> Lines:
    model = mapping(found, "device_model")
    if model:
        learnt = ", ".join(map(plain, model.get("networks") or ()))
        name = PurePath(str(model["file"])).name if model.get("file") else "device model"
        yield (
            "model",
            f"{plain(name)}: {count(model.get('rows'))} measured steps" + (learnt and f" of {learnt}"),
        )
    if any(row["extrapolated"] for row in rows(found, "rows")):
        yield "extrapolated", "* far from every network that was measured: intervals are wider there"
    beyond: dict[str, list[str]] = {}
    for target, groups in mapping(found, "outside").items():
        if groups:
            beyond.setdefault("; ".join(map(plain, groups)), []).append(plain(target))
    for words, targets in beyond.items():
        verb = "go" if len(targets) > 1 else "goes"
        yield "extrapolated", f"{' and '.join(targets)} {verb} beyond everything measured in: {words}"
    for text in sentences(found, "notes"):
        if ": extrapolated, " not in text:
            yield "note", text
    for text in sentences(found, "cannot_tell"):
        yield CANNOT_TELL, text
    for text in sentences(found, "measured"):
        yield "measured", text
    for text in sentences(rows(found, "rows")[0], "assumed"):
        yield "assumed", text


def beside_lines(found: Found) -> Lines:
    """Predicted beside measured, where a run was predicted: one line per figure."""
    for row in rows(found, "compared"):
        yield "the run", f"{plain(row['name'])}: {compared_words(row)}"
    parts = [
        f"{category_name(plain(row['name']))} {_size(row['predicted'])} ({_size(row['measured'])})"
        for row in rows(found, "categories")
    ]
    if parts:
        yield "the run", f"of it predicted (measured): {', '.join(parts)}"


def compared_words(row: Found) -> str:
    """`predicted 48.1 [40.2, 57.6] ms, measured 50.0 [49.2, 51.0] ms: -3.8 %, inside the 90 % interval`."""
    one, other = (_with_ends(row, key) for key in ("predicted", "measured"))
    if not is_number(row.get("error")):
        why = f": {plain(row['why'])}" if row.get("why") else ""
        return f"predicted {one}, measured {other}{why}"
    words = f"predicted {one}, measured {other}: {100 * row['error']:+.1f} %"
    if row.get("inside") is None:
        return words
    return f"{words}, {'inside' if row['inside'] else 'OUTSIDE'} the 90 % interval"


def _with_ends(row: Found, key: str) -> str:
    value, ends, unit = row.get(key), row.get(f"{key}_interval"), str(row.get("unit"))
    if not is_number(value):
        return CANNOT_TELL
    if unit == "bytes":
        return bytes_between(row, key) if ends else with_unit(value, unit)
    between = f" [{number(ends[0])}, {number(ends[1])}]" if ends else ""
    return f"{number(value)}{between} {unit}"


def _files(found: Found) -> Lines:
    if found.get("picture"):
        yield "picture", plain(found["picture"])
    if found.get("kept"):
        yield "kept", plain(found["kept"])
        yield "next", f"detscope report {plain(found['run'])} --open"


def print_lines(console: Console, lines: Lines) -> None:
    """Labels and texts; a label is written once, long texts go on under themselves."""
    from rich.table import Table
    from rich.text import Text

    grid, last = Table.grid(padding=(0, 1)), ""
    grid.add_column(width=_LABEL_CELLS, no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for label, text in lines:
        grid.add_row("" if label == last else label, Text(text))
        last = label
    if grid.row_count:
        console.print(grid)
