"""What an evaluation draws: precision against recall, and AP class by class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from detscope.analyze.accuracy import CocoClass, CocoMeasures, PrecisionCurve
from detscope.report.colours import BLUE, PALETTE, SKY
from detscope.report.model import Axis, Block, Chart, Column, Series, Table, Value

MOST_CLASS_BARS, MOST_CLASS_CURVES = 24, 6


def curve_blocks(boxes: CocoMeasures) -> Iterator[Block]:
    """Precision against recall: over all classes at three overlaps, or the best and the worst classes."""
    overall = [curve for curve in boxes.curves if curve.class_name is None]
    if not overall:
        return
    ranked = sorted(boxes.classes, key=lambda one: -(one.ap50 or 0.0))
    few = [*ranked[: MOST_CLASS_CURVES // 2], *ranked[MOST_CLASS_CURVES // 2 :][-MOST_CLASS_CURVES // 2 :]]
    by_name = {curve.class_name: curve for curve in boxes.curves}
    chosen = [curve for one in few if (curve := by_name.get(one.name)) is not None]
    choices = [("all classes", _curve_lines(overall))]
    if len(boxes.classes) > 1 and chosen:
        words = "every class" if len(ranked) <= MOST_CLASS_CURVES else "best and worst classes"
        choices.append((f"{words}, overlap 0.50", _curve_lines(chosen)))
    axes = Axis("recall", lowest=0, highest=1), Axis("precision", lowest=0, highest=1.02)
    label = "Precision against recall, boxes"
    yield Chart("precision-recall", label, choices[0][1], *axes, choices=choices if len(choices) > 1 else ())
    columns = [Column("recall", "number"), *(Column(curve.name, "number") for curve in overall)]
    rows: list[list[Value]] = [
        [overall[0].recalls[place], *(curve.precision[place] for curve in overall)]
        for place in range(0, len(overall[0].precision), 10)
    ]
    yield Table("precision-recall-table", "Precision at recalls, boxes, all classes", columns, rows)


def _curve_lines(curves: Sequence[PrecisionCurve]) -> list[Series]:
    return [
        Series(
            curve.name,
            [round(recall, 3) for recall in curve.recalls],
            list(curve.precision),
            PALETTE[number % len(PALETTE)],
            details=[
                f"{curve.name}: precision {precision:.3f} at recall {recall:.2f}"
                for recall, precision in zip(curve.recalls, curve.precision, strict=True)
            ],
        )
        for number, curve in enumerate(curves)
    ]


def class_charts(classes: Sequence[CocoClass]) -> Iterator[Chart]:
    """AP of every class as bars; of many the best and the worst."""
    known = sorted((one for one in classes if one.ap is not None), key=lambda one: -(one.ap or 0.0))
    if not known:
        return
    left = len(known) - MOST_CLASS_BARS
    shown = known if left <= 0 else [*known[: MOST_CLASS_BARS // 2], *known[-(MOST_CLASS_BARS // 2) :]]
    names = [one.name for one in shown]
    lines = [
        Series(
            name,
            values,
            names,
            colour,
            "bars",
            details=[f"{one}: {name} {value:.3f}" for one, value in zip(names, values, strict=True)],
        )
        for name, values, colour in (
            ("AP", [one.ap or 0.0 for one in shown], BLUE),
            ("AP50", [one.ap50 or 0.0 for one in shown], SKY),
        )
    ]
    label = "AP by class, boxes" + (
        f": the best and the worst, {left} between them left out" if left > 0 else ""
    )
    yield Chart(
        "classes-chart",
        label,
        lines,
        Axis("average precision", lowest=0, highest=1),
        Axis(scale="names", falling=True),
        bars="group",
        height=90 + 26 * len(names),
    )
