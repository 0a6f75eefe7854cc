"""Predicted beside measured: what `detscope predict RUN` expected of this run's step."""

from __future__ import annotations

from collections.abc import Sequence

from detscope.analyze.drawing import ReportData
from detscope.analyze.memory.figures import category_name
from detscope.analyze.prediction import ComparedFigure, Prediction
from detscope.report.colours import BLUE, GREY
from detscope.report.figures import number, signed_percent, with_unit
from detscope.report.model import (
    Absent,
    Axis,
    Block,
    Card,
    Cards,
    Chart,
    Column,
    Fact,
    Facts,
    Notes,
    Section,
    Series,
    Table,
    Tone,
)
from detscope.report.sections import SectionPart
from detscope.report.verbs.prediction import write_compared, write_grounds, write_value


def section(data: ReportData) -> Section | Absent:
    """How far the prediction was off, and whether its interval held."""
    found: Prediction | None = data.summary.predicted
    if found is None:
        return Absent(
            "Predicted beside measured",
            f"predict this run's own network: detscope predict {data.run.folder.name} --device-model FILE",
        )
    compared = found.compared or []
    facts = [
        Fact("predicted", f"{row.name}: {write_compared(row)}", "warn" if row.inside is False else "")
        for row in compared
    ]
    blocks: list[Block] = [Facts(facts, full=False), Cards([_make_card(row) for row in compared])]
    blocks.append(_figure_table(compared))
    if found.categories:
        blocks += [_category_bars(found.categories), _category_table(found.categories)]
    blocks.append(Notes(_list_remarks(found)))
    return Section(
        "predicted",
        "Predicted beside measured",
        _write_title(compared),
        "The run's network at its batch and image size, predicted as if it had never run. Memory is"
        " simulated; latency comes from the device model with the interval that should hold nine of ten.",
        blocks,
    )


def _write_title(compared: Sequence[ComparedFigure]) -> str:
    told = [_write_error(row.name, row.error, row.inside) for row in compared if row.error is not None]
    text = "; ".join(told) or "Nothing of what was predicted was measured in this run"
    return text[:1].upper() + text[1:]


def _write_error(name: str, error: float, inside: bool | None) -> str:
    if abs(error) < 0.0005:
        return f"{name} as predicted"
    words = f"{name} predicted {abs(error) * 100:.1f} % too {'high' if error > 0 else 'low'}"
    return words if inside is None else f"{words}, {'inside' if inside else 'outside'} the interval"


def _make_card(row: ComparedFigure) -> Card:
    name = row.name[:1].upper() + row.name[1:]
    if row.error is None:
        return Card(name, "cannot tell", row.why or "")
    unit = row.unit or ""
    detail = f"predicted {with_unit(row.predicted, unit)}, measured {with_unit(row.measured, unit)}"
    tone: Tone = "" if row.inside is None else "good" if row.inside else "warn"
    return Card(name, signed_percent(row.error), detail, tone)


def _figure_table(compared: Sequence[ComparedFigure]) -> Table:
    columns = [Column("figure"), Column("predicted [90 %]"), Column("measured [95 %]")]
    columns += [Column("error", "change"), Column("remark", "sentence")]
    body = []
    for row in compared:
        held = "" if row.inside is None else f"{'inside' if row.inside else 'outside'} the interval"
        unit = row.unit or ""
        predicted = write_value(row.predicted, row.predicted_interval, unit)
        measured = write_value(row.measured, row.measured_interval, unit)
        body.append([row.name, predicted, measured, row.error, row.why or held])
    return Table("predicted-figures", "Predicted and measured", columns, body)


def _category_bars(categories: Sequence[ComparedFigure]) -> Chart:
    names = [category_name(row.name) for row in categories]
    series = []
    for key, colour in (("predicted", BLUE), ("measured", GREY)):
        sizes = [round((getattr(row, key) or 0.0) / 1e6, 4) for row in categories]
        texts = [f"{name}, {key}: {number(size, 3)} MB" for name, size in zip(names, sizes, strict=True)]
        series.append(Series(key, sizes, names, colour, "bars", details=texts))
    return Chart(
        "predicted-bars",
        "The peak by category, predicted and measured",
        series,
        Axis("MB at the peak"),
        Axis(scale="names", falling=True),
        bars="group",
        height=110 + 44 * len(names),
    )


def _category_table(categories: Sequence[ComparedFigure]) -> Table:
    columns = [Column("category"), Column("predicted", "bytes"), Column("measured", "bytes")]
    columns.append(Column("error", "change"))
    body = [[category_name(row.name), row.predicted, row.measured, row.error] for row in categories]
    return Table("predicted-categories", "The peak by category", columns, body)


def _list_remarks(found: Prediction) -> list[str]:
    remarks = [f"device model: {write_grounds(found)}"] if found.device_model is not None else []
    if found.rows and found.rows[0].extrapolated:
        remarks.append("extrapolated: the network lies far from all that the device model was fitted on")
    remarks += [*found.notes, *(f"cannot tell: {text}" for text in found.cannot_tell)]
    return remarks + [f"assumed: {text}" for text in (found.rows[0].assumed if found.rows else ())]


PART = SectionPart("predicted", 130, section, unasked=("eval", "import", "run", "record"))
