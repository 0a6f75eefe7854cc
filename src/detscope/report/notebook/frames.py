"""What a loaded run can be asked for by name: where it comes from, what a row is, why it may be missing."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union, get_args, get_origin, get_type_hints

import msgspec
import polars as pl

from detscope.analyze.advice.case import Advice
from detscope.analyze.curve import EpochFigures
from detscope.analyze.device.kernels import KernelFigures
from detscope.analyze.figure import Figure
from detscope.analyze.stats import Interval
from detscope.analyze.step.modules import ModuleFigures, StageFigures
from detscope.analyze.step.operators import OperatorFigures
from detscope.analyze.step.steps import PHASES, Outlier, PhaseFigures
from detscope.analyze.summary import RunSummary
from detscope.runs.reader import Run
from detscope.runs.schema import TABLES

_PLAIN: dict[object, type[pl.DataType]] = {
    bool: pl.Boolean,
    int: pl.Int64,
    float: pl.Float64,
    str: pl.String,
}
_IN_STEPS = ("images", "boxes", "proposals", "detections")


@dataclass(frozen=True)
class FrameSource:
    """Where a frame of figures comes from: a list of the summary, or one row per step."""

    rows: str  # what a row is
    table: str  # of the run, without which there is none
    missing: str  # who records it
    figure: type[Figure] | None = None
    take: Callable[[RunSummary], Sequence[Figure]] = lambda _: ()
    can_be_empty: bool = False  # that there is none is an answer, too


def _take_kernels(summary: RunSummary) -> Sequence[Figure]:
    return summary.device_use.kernels if summary.device_use is not None else ()


# who records it, as the rest of a sentence: "this run has no stages, which ..."
_MEASURED = "train, infer, run and a Recorder record, and imported traces bring"
_LISTENED = "train, infer and run record at --level modules, the default, and ops"
_OPERATED = "train and run record with --level ops, and imported traces bring"
_ON_DEVICE = "are recorded on a GPU with --level ops, and brought by imported traces"
_CLOCKED = "are recorded on a device with a clock of its own, a GPU"
_SEVERAL = "trainings on several ranks record"
FIGURES: dict[str, FrameSource] = {
    "steps": FrameSource("step, with its phases in ms", "steps", _MEASURED),
    "phases": FrameSource("phase of the typical step", "steps", _MEASURED, PhaseFigures, lambda s: s.phases),
    "stages": FrameSource("stage of the detector", "spans", _LISTENED, StageFigures, lambda s: s.stages),
    "modules": FrameSource(
        "module, method, function or region", "spans", _LISTENED, ModuleFigures, lambda s: s.modules
    ),
    "operators": FrameSource(
        "operator, module and direction: the 200 costliest",
        "ops",
        _OPERATED,
        OperatorFigures,
        lambda s: s.operators,
    ),
    "kernels": FrameSource(
        "kernel of the device",
        "device_events",
        _ON_DEVICE,
        KernelFigures,
        _take_kernels,
    ),
    "outliers": FrameSource(
        "step far above the median", "steps", _MEASURED, Outlier, lambda s: s.outliers, True
    ),
    "epochs": FrameSource(
        "epoch of a training", "losses", "a training has", EpochFigures, lambda s: s.epochs, True
    ),
    "advice": FrameSource(
        "change that would save time or memory", "steps", _MEASURED, Advice, lambda s: s.advice, True
    ),
}
# tables as they lie in the folder, times in ns
RECORDED_BY: dict[str, str] = {
    "content": _MEASURED,
    "images": "infer records",
    "losses": "train and run record where the model returns losses",
    "spans": _LISTENED,
    "nodes": _LISTENED,
    "device_steps": _CLOCKED,
    "device_spans": _CLOCKED,
    "ops": _OPERATED,
    "costs": "train, infer and run count at --level modules, the default",
    "loader": "is recorded where a data loader delivers the batches",
    "transforms": "are recorded where a data loader delivers the batches",
    "census": "is counted with --census, and at --level ops",
    "telemetry": "train, infer and run record",
    "timeline": _LISTENED,
    "memory": "is recorded block by block with --memory, and brought by imported snapshots",
    "memory_levels": "are recorded with --memory",
    "memory_changes": "imported memory timelines bring",
    "device_events": _ON_DEVICE,
    "host_events": _ON_DEVICE,
    "kernel_metrics": "imported files of Nsight Compute bring",
    "communication": _SEVERAL,
    "accuracy": "eval records, and train with --eval-every",
    "rank_steps": _SEVERAL,
    "rank_content": _SEVERAL,
    "rank_timeline": _SEVERAL,
}
NAMES = tuple(dict.fromkeys([*FIGURES, *TABLES]))


def frame_figures(figures: Sequence[Figure], kind: type[Figure]) -> pl.DataFrame:
    """Figures as rows, fields as columns: the same columns and types whatever the run could tell."""
    hints = get_type_hints(kind)
    columns: list[pl.Series] = []
    for field in kind.__struct_fields__:
        values = [getattr(figure, field) for figure in figures]
        allowed = _list_types(hints[field])
        if Interval in allowed:
            columns += [
                pl.Series(f"{field}_{end}", [value and value[place] for value in values], pl.Float64)
                for place, end in enumerate(Interval._fields)
            ]
        else:
            columns.append(_make_column(field, values, allowed))
    return pl.DataFrame(columns)


def _make_column(name: str, values: Sequence[object], allowed: Sequence[object]) -> pl.Series:
    """Plain values as they are, several of them as lists; what has fields of its own as JSON."""
    for one in allowed:
        if one in _PLAIN:
            return pl.Series(name, values, _PLAIN[one])
        if get_origin(one) is tuple and get_args(one)[0] in _PLAIN:
            return pl.Series(name, [list(value) for value in values], pl.List(_PLAIN[get_args(one)[0]]))  # type: ignore[call-overload]
    told = [None if value is None else msgspec.json.encode(value).decode() for value in values]
    return pl.Series(name, told, pl.String)


def _list_types(hint: object) -> list[object]:
    """The types that a field may have; words of a Literal are text."""
    inside = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return [found for one in inside for found in _list_types(one)]
    return [str] if inside and all(isinstance(one, str) for one in inside) else [hint]


def frame_steps(run: Run) -> pl.DataFrame:
    """One row per step: its wall time and each phase in milliseconds, and what was in it."""
    rows = run.table("steps").with_columns(ms=pl.col("wall_ns") / 1e6)
    names = ("step", *PHASES)
    times = [pl.col("ms").filter(pl.col("phase") == name).sum().alias(f"{name}_ms") for name in names]
    wide = rows.group_by("step", "epoch", "mode").agg(times).sort("step")
    return wide.join(run.table("content", ["step", *_IN_STEPS]), on="step", how="left")
