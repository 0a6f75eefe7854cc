"""Accuracy: the curve of a training, average precision by class, detections drawn."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detscope.analyze.curve import training_curve
from detscope.analyze.drawing import ReportData, thinned
from detscope.report.colours import PALETTE
from detscope.report.figures import is_number, mapping, plain, rows
from detscope.report.model import Absent, Block, Chart, Column, Pictures, Section, Table
from detscope.report.sections import SectionPart

MOST_PICTURES = 6
PICTURE_WIDTH = 420


def section(data: ReportData) -> Section | Absent:
    """How right it is, and how it became so."""
    accuracy = mapping(data.summary, "accuracy")
    pictures = _pictures(data.run.folder)
    curve = _curve(data)
    if not accuracy and not pictures and curve is None:
        return Absent("Accuracy", "train with --eval-every, or run detscope eval")
    blocks: list[Block] = []
    if curve is not None:
        blocks += curve
    for kind in ("coco_box", "coco_mask", "coco_keypoints", "voc07", "voc10"):
        figures = mapping(accuracy, kind)
        if figures:
            body: list[list[Any]] = [
                [name, value if is_number(value) else "undefined"] for name, value in figures.items()
            ]
            blocks.append(
                Table(
                    f"accuracy-{kind}",
                    kind.replace("_", " "),
                    [Column("figure"), Column("value", "number")],
                    body,
                )
            )
    classes = rows(accuracy, "classes")
    if classes:
        keys = [key for key in classes[0] if key not in ("kind", "class")]
        columns = [Column("class"), Column("kind"), *(Column(key, "number") for key in keys)]
        listed: list[list[Any]] = [
            [row.get("class"), row.get("kind"), *(row.get(key) for key in keys)] for row in classes
        ]
        blocks.append(Table("accuracy-classes", "By class", columns, listed, searchable=True))
    if pictures:
        blocks.append(Pictures(pictures))
    return Section("accuracy", "Accuracy", _title(data, accuracy), _definition(accuracy), blocks)


def _title(data: ReportData, accuracy: Mapping[str, Any]) -> str:
    if is_number(accuracy.get("AP50")):
        whole = f", AP {accuracy['AP']:.3f}" if is_number(accuracy.get("AP")) else ""
        return f"AP50 {accuracy['AP50']:.3f}{whole} on images it did not train on"
    loss = mapping(data.summary, "loss")
    first, last = loss.get("first"), loss.get("last")
    if is_number(first) and is_number(last):
        return f"The loss went from {first:.3g} to {last:.3g}; accuracy was not evaluated"
    return "What it found"


def _definition(accuracy: Mapping[str, Any]) -> str:
    if not accuracy:
        return ""
    return (
        "COCO's average precision: AP is the mean over overlaps 0.50 to 0.95, AP50 that at 0.50; undefined"
        " where a class has no ground truth."
    )


def _curve(data: ReportData) -> list[Block] | None:
    if data.run.info.get("verb") not in ("train", "run"):
        return None
    curve = training_curve(data.run)
    if curve is None or len(curve.loss.steps) < 2:
        return None
    traces: list[dict[str, Any]] = []
    for index, line in enumerate((curve.smoothed, *curve.parts)):
        x, y = thinned([float(s) for s in line.steps], line.values, 400)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{line.name} (smoothed)",
                "x": x,
                "y": [round(v, 5) for v in y],
                "line": {"color": PALETTE[index % len(PALETTE)], "width": 3 if index == 0 else 1.5},
            }
        )
    for index, line in enumerate(curve.accuracy):
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": line.name,
                "x": line.steps,
                "y": line.values,
                "yaxis": "y2",
                "line": {"dash": "dot", "color": PALETTE[-1 - index % len(PALETTE)]},
            }
        )
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"title": {"text": "loss"}, "rangemode": "tozero"},
    }
    if curve.accuracy:
        layout["yaxis2"] = {"title": {"text": "AP"}, "overlaying": "y", "side": "right", "range": [0, 1.02]}
    blocks: list[Block] = [Chart("curve", "Loss and accuracy over the training", traces, layout, 360)]
    epochs = rows(data.summary, "epochs")
    if epochs:
        body = [
            [
                row.get("epoch"),
                row.get("step"),
                row.get("loss"),
                row.get("learning_rate"),
                mapping(mapping(row, "accuracy"), "coco_box").get("AP50"),
            ]
            for row in epochs
        ]
        columns = [
            Column("epoch", "count"),
            Column("steps", "count"),
            Column("loss", "number"),
            Column("learning rate", "number"),
            Column("AP50", "number"),
        ]
        blocks.append(Table("epochs", "Epoch by epoch", columns, body))
    else:
        body = [
            [line.name, line.values[0], line.values[-1]]
            for line in (curve.smoothed, *curve.parts)
            if line.values
        ]
        blocks.append(
            Table(
                "losses",
                "Losses, smoothed",
                [Column("loss"), Column("first", "number"), Column("last", "number")],
                body,
            )
        )
    return blocks


def _pictures(folder: Path) -> list[tuple[str, str]]:
    """A few of the drawn images, made small enough to travel inside the page."""
    drawn = [
        path
        for path in sorted((folder / "pictures").glob("*.png"))
        if path.stem not in ("curve",) and not path.stem.startswith("memory")
    ]
    drawn += sorted((folder / "pictures").glob("*.jpg")) + sorted((folder / "worst").glob("*.png"))
    return [(plain(path.stem), _small(path)) for path in drawn[:MOST_PICTURES]]


def _small(path: Path) -> str:
    from io import BytesIO

    from PIL import Image

    with Image.open(path) as picture:
        picture.thumbnail((PICTURE_WIDTH, PICTURE_WIDTH))
        target = BytesIO()
        picture.convert("RGB").save(target, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(target.getvalue()).decode()}"


PART = SectionPart("accuracy", 140, section)
