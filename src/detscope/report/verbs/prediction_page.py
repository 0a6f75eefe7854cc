"""A prediction as one offline page: what fits and which batch is best, as cards, curves and bars."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from detscope.analyze.prediction import PredictedStep, Prediction
from detscope.report.figures import CANNOT_TELL, count, number, with_unit
from detscope.report.model import Block, Card, Cards, Facts, Findings, Section, Suggestion, Tone
from detscope.report.render.page import render_page
from detscope.report.verbs.prediction import (
    ground_facts,
    row_of_places,
    step_table,
    write_fitting,
    write_heading,
    write_value,
)
from detscope.report.verbs.prediction_charts import prediction_charts

_DEFINITION = (
    "No step was run. Memory is simulated from the lives of tensors; latency comes from the device model,"
    " with the interval that should hold nine of ten."
)
_PARTS = ("time-parts", "peak-parts", "stage-parts")


def prediction_page(found: Prediction) -> str:
    """The whole page."""
    charts = prediction_charts(found)
    curves, parts = ([one for one in charts if (one.id in _PARTS) is inner] for inner in (False, True))
    first: list[Block] = [Cards(list(_make_cards(found))), Findings(list(_next_steps(found))), *curves]
    sections = [Section("verdict", "Verdict", _write_verdict(found), _DEFINITION, first)]
    sections.append(Section("batches", "Batch sizes", _tell_range(found), "", [step_table(found)]))
    if parts:
        batch = row_of_places(found).batch
        sections.append(Section("places", "Where it goes", f"Time and memory at batch {batch}", "", parts))
    facts = Facts(list(ground_facts(found)))
    sections.append(Section("grounds", "What it rests on", "What was assumed and what is known", "", [facts]))
    made = "Made by detscope. The file needs no network and sends nothing."
    name = found.network or "network"
    heading = write_heading(found).removeprefix(f"{name}: ")
    return render_page(name, heading, sections, [], made)


def _write_verdict(found: Prediction) -> str:
    told = [_tell_fitting(found)] if found.limit_bytes is not None else []
    best = _find_row(found, found.best_batch_for_throughput)
    if best is not None:
        told.append(f"batch {best.batch} is best: {number(best.images_per_s)} images/s")
    if not told and found.rows:
        row = found.rows[-1]
        told.append(f"Batch {row.batch} would reserve {with_unit(row.reserved_bytes, 'bytes')} on CUDA")
    text = "; ".join(told) or CANNOT_TELL
    return text[:1].upper() + text[1:]


def _tell_range(found: Prediction) -> str:
    """`From 45.2 MB at batch 1 to 587.2 MB at batch 128`."""
    ends = [found.rows[0], found.rows[-1]] if found.rows else []
    sizes = [row.needed_bytes if row.needed_bytes is not None else row.reserved_bytes for row in ends]
    told = [f"{with_unit(size, 'bytes')} at batch {row.batch}" for size, row in zip(sizes, ends, strict=True)]
    return f"From {' to '.join(told)}" if len(found.rows) > 1 else ", ".join(told[:1]) or CANNOT_TELL


def _tell_fitting(found: Prediction) -> str:
    text = write_fitting(found)
    return f"Fits {text}" if found.largest_batch_that_fits else text[:1].upper() + text[1:]


def _find_row(found: Prediction, batch: int | None) -> PredictedStep | None:
    return next((row for row in found.rows if row.batch == batch), None)


def _make_cards(found: Prediction) -> Iterator[Card]:
    shown = _find_row(found, found.best_batch_for_throughput) or next(iter(found.rows), None)
    if shown is None:
        return
    if shown.latency_ms is not None:
        step = with_unit(shown.latency_ms, "ms")
        ends = write_value(shown.latency_ms, shown.latency_ms_interval, "ms")
        yield Card(f"Step at batch {shown.batch}", step, f"90 % interval {ends.partition(' ')[2]}")
        yield Card("Speed", f"{number(shown.images_per_s)} images/s", f"at batch {shown.batch}")
    else:
        yield Card("Step", CANNOT_TELL, found.latency_why or "")
    whole = shown.needed_bytes if shown.needed_bytes is not None else shown.reserved_bytes
    whose = "of the process" if shown.needed_bytes is not None else "reserved by CUDA's allocator"
    yield Card(f"Memory at batch {shown.batch}", with_unit(whole, "bytes"), whose)
    if found.limit_bytes is not None:
        largest = found.largest_batch_that_fits
        tone: Tone = "good" if largest else "warn"
        room = f"in {with_unit(found.limit_bytes, 'bytes')}"
        yield Card("Largest batch that fits", count(largest) if largest else CANNOT_TELL, room, tone)


def _next_steps(found: Prediction) -> Iterator[Suggestion]:
    name = shlex.quote(found.network or "NETWORK")
    if found.device_model is None:
        text = "Latency needs a model of the device; three minutes of single layers make one."
        yield Suggestion(
            "learn how fast this device is", text, "", "detscope fit --microbench --out my.model"
        )
    if found.limit_bytes is None:
        text = "Whether a batch fits is told beside the memory that there is."
        yield Suggestion(
            "say how much memory there is", text, "", f"detscope predict {name} --memory-limit 8GiB"
        )
    best = found.best_batch_for_throughput
    if best is not None and found.stage != "inference":
        text = "A run of its own, beside which `detscope predict RUN` sets what was expected."
        yield Suggestion(
            f"measure it at batch {best}", text, "", f"detscope train {name} --batch-size {best}"
        )
