"""A prediction: a row per batch size, what follows from them, and what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath

from detscope.analyze.memory.figures import category_name
from detscope.analyze.prediction import ComparedFigure, Ends, PredictedStep, Prediction
from detscope.report.figures import CANNOT_TELL, count, number, percent, signed_percent, with_unit
from detscope.report.model import Block, Column, Fact, Facts, Section, Table, Tone, Value

_PARTS_SHOWN, _CATEGORIES_SHOWN = 6, 8
_SMALL_SHARE = 0.005
_SHORT = {"too close to call": "too close"}
_TONES: dict[str, Tone] = {"fits": "good", "too close to call": "warn", "does not fit": "bad"}


def prediction_sections(found: Prediction) -> list[Section]:
    """All of a prediction."""
    facts = [*_compared_facts(found), *_answer_facts(found), *_place_facts(found), *ground_facts(found)]
    blocks: list[Block] = [step_table(found), Facts(facts), Facts(_file_facts(found))]
    return [Section("prediction", "Predicted", write_heading(found), "", blocks, brief_title=True)]


def write_heading(found: Prediction) -> str:
    """What is predicted, and from what."""
    words = [f"{found.stage or 'training'} step"]
    words += [f"{found.image_size[0]} x {found.image_size[1]} pixels"] if found.image_size else []
    words += [found.optimizer] if found.optimizer else []
    return f"{found.network}: {', '.join(words)}, predicted"


def step_table(found: Prediction) -> Table:
    """A row per batch size; columns without a figure are left out."""
    timed = any(row.latency_ms is not None for row in found.rows)
    whole = any(row.needed_bytes is not None for row in found.rows)
    here = any(row.cpu_allocated_bytes is not None for row in found.rows)
    limited = found.limit_bytes is not None
    columns = [Column("batch", "number")]
    columns += [Column("ms [90 %]", "number"), Column("images/s", "number")] if timed else []
    # a process holds what is reserved
    columns += [Column("process [90 %]", "number") if whole else Column("reserved", "bytes")]
    columns += [Column("allocated", "bytes")] + ([Column("on this CPU", "bytes")] if here else [])
    columns += [Column("fits")] if limited else []
    body = []
    for row in found.rows:
        cells: list[Value] = [f"{row.batch}{' *' if row.extrapolated else ''}"]
        if timed:
            cells += [_value_text(row.latency_ms, row.latency_ms_interval, ""), row.images_per_s]
        process = _value_text(row.needed_bytes, row.needed_bytes_interval, "bytes")
        cells += [process if whole else row.reserved_bytes, row.allocated_bytes]
        cells += [row.cpu_allocated_bytes] if here else []
        body.append(cells + ([_SHORT.get(row.fits, row.fits)] if limited else []))
    tones = [_TONES.get(row.fits, "") for row in found.rows] if limited else []
    return Table("steps", "By batch size", columns, body, tones=tones, brief_rows=len(body))


def _value_text(value: float | None, ends: Ends | None, unit: str) -> str:
    if value is None or ends is None:
        return CANNOT_TELL
    return write_value(value, ends, unit)


def write_value(value: float | None, ends: Ends | None, unit: str) -> str:
    """`48.1 [40.2, 57.6] ms`, `1.52 [1.41, 1.63] GB`: all in the unit of the first."""
    if value is None:
        return CANNOT_TELL
    middle, _, unit = with_unit(value, unit).rpartition(" ") if unit else (number(value), "", "")
    size = {"GB": 1e9, "MB": 1e6, "kB": 1e3}.get(unit, 1.0)
    between = f" [{number(ends[0] / size)}, {number(ends[1] / size)}]" if ends else ""
    return f"{middle}{between} {unit}".rstrip()


def _compared_facts(found: Prediction) -> Iterator[Fact]:
    """Predicted beside measured, where a run was predicted: one line per figure."""
    for row in found.compared or ():
        yield Fact("the run", f"{row.name}: {write_compared(row)}", "warn" if row.inside is False else "")
    parts = [
        f"{category_name(row.name)} {_write_bytes(row.predicted)} ({_write_bytes(row.measured)})"
        for row in found.categories
    ]
    if parts:
        yield Fact("the run", f"of it predicted (measured): {', '.join(parts)}")


def write_compared(row: ComparedFigure) -> str:
    """`predicted 48.1 [40.2, 57.6] ms, measured 50.0 [49.2, 51.0] ms: -3.8 %, inside the 90 % interval`."""
    unit = row.unit or ""
    one = write_value(row.predicted, row.predicted_interval, unit)
    other = write_value(row.measured, row.measured_interval, unit)
    if row.error is None:
        return f"predicted {one}, measured {other}" + (f": {row.why}" if row.why else "")
    held = "" if row.inside is None else f", {'inside' if row.inside else 'OUTSIDE'} the 90 % interval"
    return f"predicted {one}, measured {other}: {signed_percent(row.error)}{held}"


def _answer_facts(found: Prediction) -> Iterator[Fact]:
    of_a_run = found.compared is not None  # it has one batch size
    if not of_a_run or found.limit_bytes is not None:
        yield Fact("fits", write_fitting(found), stays=True)
    if of_a_run:
        return
    best = found.best_batch_for_throughput
    row = next((row for row in found.rows if row.batch == best), None)
    if row is None:
        why = found.latency_why or "no batch above fits"
        yield Fact("best batch", f"{CANNOT_TELL}: {why}")
    else:
        text = f"{best} of those above, {number(row.images_per_s)} images/s"
        yield Fact("best batch", text, stays=True)


def write_fitting(found: Prediction) -> str:
    """Up to which batch size the network fits, and from which on it does not."""
    if found.limit_bytes is None:
        return f"{CANNOT_TELL}: no memory limit; --memory-limit 8GiB"
    room = with_unit(found.limit_bytes, "bytes")
    largest, first_out = found.largest_batch_that_fits, found.smallest_batch_that_does_not_fit
    why = next((row.fits_why for row in found.rows if row.fits_why), None)
    if largest:
        text = f"up to batch {count(largest)} in {room}"
    elif why:
        text = f"{CANNOT_TELL} what fits in {room}: {why}"
    else:
        text = f"no batch surely fits in {room}"
    if first_out:
        text += f"; from batch {count(first_out)} on it does not"
        if largest and first_out > largest + 1:
            text += ", between them it is too close to call"
        elif why and not largest:
            text += ": the allocator alone needs more"
    return text


def _place_facts(found: Prediction) -> Iterator[Fact]:
    """Where time and memory are expected."""
    if not found.rows:
        return
    row = row_of_places(found)
    if len(found.latency_by_stage) > 1:
        shares = [(part.name, part.share) for part in found.latency_by_stage]
        yield Fact("time", f"at batch {row.batch}: {_write_parts(shares, percent)}")
    parts = row.cpu_categories or row.categories
    where = "on this CPU" if row.cpu_categories else "by CUDA's allocator"
    named = [(category_name(part.name), part.bytes) for part in parts]
    text = _write_parts(named, _write_bytes, _CATEGORIES_SHOWN)
    yield Fact("memory", f"peak at batch {row.batch} {where}: {text}")
    if found.memory_by_stage:
        made = "activations" if found.stage != "inference" else "tensors made"
        sizes = [(part.name, part.bytes) for part in found.memory_by_stage]
        yield Fact("memory", f"{made} at batch {row.batch}: {_write_parts(sizes, _write_bytes)}")


def row_of_places(found: Prediction) -> PredictedStep:
    """The batch size of which it is told where time and memory go."""
    largest = max(found.rows, key=lambda row: row.batch)
    return next((row for row in found.rows if row.batch == found.places_at_batch), largest)


def _write_bytes(value: float | None) -> str:
    return with_unit(value, "bytes")


def _write_parts(
    parts: Sequence[tuple[str, float]], write: Callable[[float], str], most: int = _PARTS_SHOWN
) -> str:
    """The largest parts; the others together, where they matter."""
    whole = sum(size for _, size in parts) or 1
    ordered = sorted(parts, key=lambda part: -part[1])
    shown = [(name, size) for name, size in ordered[:most] if size / whole >= _SMALL_SHARE]
    rest = [size for _, size in ordered[len(shown) :]]
    words = [f"{name} {write(size)}" for name, size in shown]
    words += [f"{len(rest)} more {write(sum(rest))}"] if sum(rest) / whole >= _SMALL_SHARE else []
    return ", ".join(words)


def ground_facts(found: Prediction) -> Iterator[Fact]:
    """The device model, where it is stretched, and what else was taken for granted."""
    if found.device_model is not None:
        file = found.device_model.file
        name = PurePath(file).name if file else "device model"
        yield Fact("model", f"{name}: {write_grounds(found)}")
    if any(row.extrapolated for row in found.rows):
        text = "* far from every network that was measured: intervals are wider there"
        yield Fact("extrapolated", text, "warn")
    beyond: dict[str, list[str]] = {}
    for row in found.outside:
        if row.groups:
            beyond.setdefault("; ".join(row.groups), []).append(row.target)
    for words, targets in beyond.items():
        verb = "go" if len(targets) > 1 else "goes"
        text = f"{' and '.join(targets)} {verb} beyond everything measured in: {words}"
        yield Fact("extrapolated", text, "warn")
    for label, sentences in (("note", found.notes), (CANNOT_TELL, found.cannot_tell)):
        for text in sentences:
            yield Fact(label, text)
    for label, several in (
        ("measured", found.measured),
        ("assumed", found.rows[0].assumed if found.rows else ()),
    ):
        if several:
            yield Fact(label, "; ".join(several))


def write_grounds(found: Prediction) -> str:
    """`944 measured steps of resnet18, mnasnet`."""
    model = found.device_model
    if model is None:
        return "no device model"
    learnt = ", ".join(model.networks)
    return f"{count(model.rows)} measured steps" + (f" of {learnt}" if learnt else "")


def _file_facts(found: Prediction) -> list[Fact]:
    facts = [Fact("picture", found.picture, stays=True)] if found.picture else []
    if found.kept:
        facts += [
            Fact("kept", found.kept, stays=True),
            Fact("next", f"detscope report {found.run} --open", stays=True),
        ]
    return facts
