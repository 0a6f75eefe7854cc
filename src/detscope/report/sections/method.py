"""How it was measured: environment, own cost, steadiness, definitions, what could not be known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from detscope.analyze.device.processor import TelemetryFigures
from detscope.analyze.drawing import ReportData
from detscope.analyze.step.overhead import OwnCost
from detscope.report.figures import interval, number, with_unit
from detscope.report.model import Block, Column, Notes, Section, Table, Value
from detscope.report.sections import SectionPart

BRIEF_TELEMETRY = 16
_TRAINS = ("train", "run", "record", "import")
_INFERS = ("infer",)
# definitions that only some verbs can need; all others are everybody's
_VERBS_OF = {
    "module backward_ms": _TRAINS,
    "backward_attributed": _TRAINS,
    "capacity_images_per_s": ("train", "run", "record"),
    "demand_images_per_s": ("train", "run", "record"),
    "receive_ms": ("train", "run", "record"),
    "overhead_ratio": ("train", "infer", "run", "record"),
    "latency_ms": _INFERS,
    "decode": _INFERS,
    "stages of an inference": _INFERS,
    "first_image_ms": _INFERS,
    "cost_against_content": _INFERS,
    "memory of the pass": _INFERS,
    "padding_share": ("train", "infer", "run", "record"),
}
# verbs in which no recorder of ours ran beside the steps
_UNRECORDED = {
    "import": "Another tool recorded it: what its recording cost is not in the file",
    "eval": "Detections against ground truth, by the definitions of COCO and VOC",
}
Fact = str | int | float | bool | None | list["Fact"] | Mapping[str, "Fact"]


def section(data: ReportData) -> Section:
    """Everything a doubter asks for."""
    summary = data.summary
    blocks: list[Block] = []
    remarks = [f"cannot tell: {text}" for text in summary.cannot_tell] + summary.notes
    if remarks:
        blocks.append(Notes(remarks, brief=True))
    facts = [[name, text] for name, text in _run_facts(data)]
    blocks.append(Table("facts", "This run and its machine", [Column("what"), Column("value")], facts))
    blocks += _telemetry_tables(summary.telemetry)
    columns = [Column("number"), Column("definition", "sentence")]
    verb = summary.verb or ""
    told = [one for one in summary.definitions if verb in _VERBS_OF.get(one.name, (verb,))]
    if summary.accuracy is not None and summary.accuracy.evaluation is not None:
        told = list(summary.accuracy.evaluation.definitions)
    definitions: list[list[Value]] = [[one.name, one.text] for one in told]
    blocks.append(Table("definitions", "What the numbers mean", columns, definitions))
    return Section("method", "How it was measured", _headline(summary.overhead_ratio, verb), "", blocks)


def _headline(cost: OwnCost, verb: str) -> str:
    if verb in _UNRECORDED:
        return _UNRECORDED[verb]
    if cost.value is None:
        return f"What recording costs is not known: {cost.why}"
    ends = interval(cost.ci95)
    whose = " by the device's clock" if cost.clock == "device" else ""
    return (
        f"Steps take {number(cost.value, 3)} times as long as without a recorder{whose}, 95 % interval {ends}"
    )


def _run_facts(data: ReportData) -> Iterator[tuple[str, str]]:
    summary = data.summary
    for key in ("run", "verb", "status", "reason", "device", "batch_size", "precision", "level"):
        if (value := getattr(summary, key)) is not None:
            yield key, str(value)
    if summary.step_ms.n:
        yield "steadiness", f"{summary.stability.verdict}: {summary.stability.reason}"
    for key in ("model", "weights", "data", "environment"):
        yield from _flatten_facts(key, data.run.info.get(key))


def _flatten_facts(name: str, value: Fact) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten_facts(f"{name}.{key}", inner)
    elif value not in (None, "", []):
        yield name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _tell_most(row: TelemetryFigures) -> str:
    """The highest sample; of a running total what came to it."""
    if row.total is not None:
        return f"{_tell_amount(row.total, row)} in all"
    return "" if row.max is None else _tell_amount(row.max, row)


def _tell_amount(value: float | None, row: TelemetryFigures) -> str:
    """A count says itself what it counts."""
    return with_unit(value, "" if row.unit == "count" else row.unit or "")


def _telemetry_tables(telemetry: Sequence[TelemetryFigures]) -> Iterator[Table]:
    """What the machine did meanwhile; cores and workers one by one are left to the page."""
    single = [row for row in telemetry if row.source.startswith(("core:", "worker:"))]
    whole = [row for row in telemetry if row not in single]
    for name, caption, chosen, most in (
        ("telemetry", "The machine, sampled while it ran", whole, BRIEF_TELEMETRY),
        ("telemetry-single", "Single cores and workers, sampled while it ran", single, 0),
    ):
        columns = [Column("source"), Column("metric"), Column("mean", "number"), Column("max", "number")]
        columns.append(Column("samples", "count", brief=False))
        rows: list[list[Value]] = [
            [
                row.source,
                row.metric.removesuffix("_bytes").removesuffix("_percent").replace("_", " "),
                _tell_amount(row.mean, row) if row.total is None else "",
                _tell_most(row),
                row.n,
            ]
            for row in chosen
        ]
        if rows:
            yield Table(name, caption, columns, rows, brief_rows=most)


PART = SectionPart("method", 170, section)
