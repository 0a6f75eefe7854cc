"""Predicted beside measured: what `detscope predict RUN` expected of this run's step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detscope.analyze.drawing import ReportData
from detscope.report.colours import BLUE, GREY
from detscope.report.figures import is_number, mapping, number, plain, rows, sentences, with_unit
from detscope.report.memory_colours import category_name
from detscope.report.model import Absent, Block, Card, Cards, Chart, Column, Notes, Section, Table
from detscope.report.sections import SectionPart
from detscope.report.terminal_predict import bytes_between


def section(data: ReportData) -> Section | Absent:
    """How far the prediction was off, and whether its interval held."""
    found = mapping(data.summary, "predicted")
    if not found:
        return Absent(
            "Predicted beside measured",
            f"predict this run's own network: detscope predict {plain(data.run.folder.name)}"
            " --device-model FILE",
        )
    blocks: list[Block] = [Cards([_card(row) for row in rows(found, "compared")])]
    blocks.append(_figures(found))
    categories = rows(found, "categories")
    if categories:
        blocks += [_bars(categories), _categories(categories)]
    remarks = _remarks(found)
    if remarks:
        blocks.append(Notes(remarks))
    return Section(
        "predicted",
        "Predicted beside measured",
        _title(found),
        "The run's network at its batch and image size, predicted as if it had never run. Memory is"
        " simulated; latency comes from the device model with the interval that should hold nine of ten.",
        blocks,
    )


def _title(found: Mapping[str, Any]) -> str:
    told = [_sentence(row) for row in rows(found, "compared") if is_number(row.get("error"))]
    if not told:
        return "Nothing of what was predicted was measured in this run"
    text = "; ".join(told)
    return text[:1].upper() + text[1:]


def _sentence(row: Mapping[str, Any]) -> str:
    name = plain(row["name"])
    error = float(row["error"])
    if abs(error) < 0.0005:
        return f"{name} as predicted"
    words = f"{name} predicted {abs(error) * 100:.1f} % too {'high' if error > 0 else 'low'}"
    if row.get("inside") is None:
        return words
    return f"{words}, {'inside' if row['inside'] else 'outside'} the interval"


def _card(row: Mapping[str, Any]) -> Card:
    name = plain(row["name"])
    if not is_number(row.get("error")):
        return Card(name[:1].upper() + name[1:], "cannot tell", plain(row.get("why") or ""))
    inside = row.get("inside")
    tone = "" if inside is None else "good" if inside else "warn"
    detail = f"predicted {_value(row, 'predicted')}, measured {_value(row, 'measured')}"
    return Card(name[:1].upper() + name[1:], f"{100 * row['error']:+.1f} %", detail, tone)  # type: ignore[arg-type]


def _value(row: Mapping[str, Any], key: str) -> str:
    return with_unit(row.get(key), str(row.get("unit")))


def _ends(row: Mapping[str, Any], key: str) -> str:
    ends = row.get(f"{key}_interval")
    if not ends:
        return ""
    if row.get("unit") == "bytes":
        return bytes_between(row, key).partition(" ")[2]
    return f"[{number(ends[0])}, {number(ends[1])}]"


def _figures(found: Mapping[str, Any]) -> Table:
    columns = [Column("figure"), Column("predicted"), Column("90 % interval"), Column("measured")]
    columns += [Column("95 % interval"), Column("error"), Column("remark", "sentence")]
    body = []
    for row in rows(found, "compared"):
        inside = row.get("inside")
        held = "" if inside is None else "inside the interval" if inside else "outside the interval"
        error = f"{100 * row['error']:+.1f} %" if is_number(row.get("error")) else None
        body.append(
            [
                row["name"],
                _value(row, "predicted") if is_number(row.get("predicted")) else None,
                _ends(row, "predicted"),
                _value(row, "measured") if is_number(row.get("measured")) else None,
                _ends(row, "measured"),
                error,
                plain(row.get("why") or held),
            ]
        )
    return Table("predicted-figures", "Predicted and measured", columns, body)


def _bars(categories: list[Mapping[str, Any]]) -> Chart:
    names = [category_name(plain(row["name"])) for row in reversed(categories)]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": key,
            "x": [round(row[key] / 1e6, 4) for row in reversed(categories)],
            "y": names,
            "marker": {"color": colour},
            "hovertemplate": f"%{{y}}, {key}: %{{x:.3f}} MB<extra></extra>",
        }
        for key, colour in (("measured", GREY), ("predicted", BLUE))
    ]
    layout = {
        "barmode": "group",
        "xaxis": {"title": {"text": "MB at the peak"}},
        "yaxis": {},
        "showlegend": True,
        "legend": {"traceorder": "reversed"},
    }
    height = 110 + 44 * len(names)
    return Chart("predicted-bars", "The peak by category, predicted and measured", traces, layout, height)


def _categories(categories: list[Mapping[str, Any]]) -> Table:
    columns = [Column("category"), Column("predicted", "bytes"), Column("measured", "bytes"), Column("error")]
    body = [
        [
            category_name(plain(row["name"])),
            row["predicted"],
            row["measured"],
            f"{100 * row['error']:+.1f} %" if is_number(row.get("error")) else None,
        ]
        for row in categories
    ]
    return Table("predicted-categories", "The peak by category", columns, body)


def _remarks(found: Mapping[str, Any]) -> list[str]:
    asked = rows(found, "rows")
    model = mapping(found, "device_model")
    remarks = []
    if model:
        learnt = ", ".join(map(plain, model.get("networks") or ()))
        remarks.append(
            f"device model: {number(model.get('rows'), 0)} measured steps" + (learnt and f" of {learnt}")
        )
    if asked and asked[0].get("extrapolated"):
        remarks.append("extrapolated: the network lies far from all that the device model was fitted on")
    remarks += [text for text in sentences(found, "notes") if ": extrapolated, " not in text]
    remarks += [f"cannot tell: {text}" for text in sentences(found, "cannot_tell")]
    remarks += [f"assumed: {text}" for text in (sentences(asked[0], "assumed") if asked else [])]
    return remarks


PART = SectionPart("predicted", 130, section)
