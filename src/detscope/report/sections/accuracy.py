"""Accuracy: the curve of a training, average precision by class, detections drawn."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path

from detscope.analyze.accuracy import (
    KINDS,
    AccuracyFigures,
    CocoFigures,
    Evaluation,
    UncoveredData,
)
from detscope.analyze.curve import RATE, training_curve
from detscope.analyze.drawing import ReportData, thinned
from detscope.analyze.schema import field_comments
from detscope.report.blocks.accuracy import class_charts, curve_blocks
from detscope.report.colours import PALETTE
from detscope.report.figures import number, percent
from detscope.report.model import (
    Absent,
    Axis,
    Block,
    Chart,
    Column,
    Fact,
    Facts,
    Pictures,
    Section,
    Series,
    Table,
    Value,
)
from detscope.report.sections import SectionPart

MOST_PICTURES, PICTURE_WIDTH, WORST_WIDTH = 6, 420, 640
BRIEF_EPOCHS, BRIEF_WORST = 20, 5
UNDEFINED = "undefined"
_CLASS_FIGURES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar_100")
_KEYPOINT_FIGURES = (
    "ap",
    "ap50",
    "ap75",
    "ap_medium",
    "ap_large",
    "ar",
    "ar50",
    "ar75",
    "ar_medium",
    "ar_large",
)
_BOX_FIGURES = tuple(name for name in CocoFigures.__struct_fields__ if name not in ("ar", "ar50", "ar75"))
_CHARTS_WITH_FILES = ("curve", "modules", "memory_timeline", "memory_peak")


def section(data: ReportData) -> Section | Absent:
    """How right it is, and how it became so."""
    accuracy = data.summary.accuracy
    pictures = _small_pictures(data.run.folder, accuracy.evaluation if accuracy is not None else None)
    drawn = [Pictures(pictures)] if pictures else []
    if accuracy is not None and accuracy.evaluation is not None:
        blocks = [*_evaluation_blocks(accuracy, accuracy.evaluation, drawn)]
    else:
        blocks = [
            *_course_blocks(data),
            *(_training_tables(accuracy) if accuracy is not None else ()),
            *drawn,
        ]
    if not blocks:
        return Absent("Accuracy", "train with --eval-every, or run detscope eval")
    definition = (
        "COCO's average precision: AP is the mean over overlaps 0.50 to 0.95, AP50 that at 0.50; undefined"
        " where a class has no ground truth."
    )
    short = "Accuracy" if data.summary.verb != "infer" else "Detections"  # nobody said what is right
    return Section("accuracy", short, _headline(data), definition if accuracy else "", blocks)


def _headline(data: ReportData) -> str:
    accuracy, loss = data.summary.accuracy, data.summary.loss
    if accuracy is not None and accuracy.evaluation is not None:
        return _evaluated_headline(accuracy, accuracy.evaluation)
    if accuracy is not None and accuracy.ap50 is not None:
        whole = f", AP {accuracy.ap:.3f}" if accuracy.ap is not None else ""
        return f"AP50 {accuracy.ap50:.3f}{whole} on images it did not train on"
    if loss is not None and loss.first is not None and loss.last is not None:
        return f"The loss went from {loss.first:.3g} to {loss.last:.3g}; accuracy was not evaluated"
    return "What it found"


def _evaluated_headline(accuracy: AccuracyFigures, found: Evaluation) -> str:
    about = found.data
    many = f"{number(about.images, 0)} images" if about is not None and about.images is not None else "images"
    split = f", split {about.split}" if about is not None and about.split else ""
    return f"AP50 {_figure_text(accuracy.ap50)}, AP {_figure_text(accuracy.ap)} on {many}{split}"


def _course_blocks(data: ReportData) -> Iterator[Block]:
    summary = data.summary
    curve = training_curve(data.run) if summary.verb in ("train", "run") else None
    facts = list(_course_facts(data))
    if facts:
        yield Facts(facts)
    if curve is not None and len(curve.loss.steps) > 1:
        lines = []
        for index, line in enumerate((curve.smoothed, *curve.parts)):
            x, y = thinned([float(step) for step in line.steps], line.values, 400)
            values, colour = [round(value, 5) for value in y], PALETTE[index % len(PALETTE)]
            lines.append(Series(f"{line.name} (smoothed)", x, values, colour, width=3 if index == 0 else 1.5))
        for index, line in enumerate(curve.accuracy):
            colour = PALETTE[-1 - index % len(PALETTE)]
            lines.append(
                Series(line.name, line.steps, line.values, colour, "both", dash="dot", on_right=True)
            )
        right = Axis("AP", lowest=0, highest=1.02) if curve.accuracy else None
        label = "Loss and accuracy over the training"
        evaluated = summary.accuracy is not None or len(summary.epochs) > 1
        yield Chart(
            "curve",
            label,
            lines,
            Axis("step"),
            Axis("loss", lowest=0),
            right,
            height=360,
            file="curve" if evaluated and summary.verb == "train" else "",
        )
    if summary.epochs:
        yield _epochs_table(data)
    elif curve is not None:
        first_last: list[list[Value]] = [
            [line.name, line.values[0], line.values[-1]]
            for line in (curve.smoothed, *curve.parts)
            if line.values
        ]
        columns = [Column("loss"), Column("first", "number"), Column("last", "number")]
        yield Table("losses", "Losses, smoothed", columns, first_last)


def _course_facts(data: ReportData) -> Iterator[Fact]:
    summary = data.summary
    best = summary.accuracy.best if summary.accuracy else None
    if best is not None:
        kind = best.kind.removeprefix("coco_")
        held_out = summary.held_out.images if summary.held_out else None
        on = f", on {held_out} held-out images" if held_out is not None else ""
        yield Fact("best", f"{kind} {best.figure} {number(best.value, 3)}, epoch {best.epoch}{on}", "strong")
    if summary.resumed_from is not None:
        yield Fact("continues", f"{summary.resumed_from.run} from step {summary.resumed_from.step}")


def _epochs_table(data: ReportData) -> Table:
    """Loss, learning rate and accuracy by epoch, the last on top."""
    epochs = data.summary.epochs
    kinds = [kind for kind in KINDS if any(getattr(row.accuracy, kind, None) for row in epochs)]
    columns = [Column("epoch", "count"), Column("steps", "count", brief=False), Column("loss", "number")]
    columns.append(Column(RATE.replace("_", " ")))
    rows: list[list[Value]] = []
    for kind in kinds:
        word = "" if kind == "coco_box" else f"{KINDS[kind].removesuffix('s')} "
        columns += [Column(f"{word}AP"), Column(f"{word}AP50")]
    for row in reversed(epochs):
        rate = f"{row.learning_rate:.3g}" if row.learning_rate is not None else None
        cells: list[Value] = [row.epoch, row.step, row.loss, rate]
        for kind in kinds:
            found: CocoFigures | None = getattr(row.accuracy, kind, None)
            cells += [_figure_text(found.ap), _figure_text(found.ap50)] if found else ["", ""]
        rows.append(cells)
    return Table("epochs", "Epochs, the last on top", columns, rows, brief_rows=BRIEF_EPOCHS)


def _training_tables(accuracy: AccuracyFigures) -> Iterator[Block]:
    for kind in (*KINDS, "voc07", "voc10"):
        figures: CocoFigures | None = getattr(accuracy, kind)
        if figures is not None:
            names = ("ap",) if kind.startswith("voc") else _figures_of(kind)
            rows: list[list[Value]] = [
                [_coco_word(name), _figure_text(getattr(figures, name))] for name in names
            ]
            columns = [Column("figure"), Column("value")]
            yield Table(f"accuracy-{kind}", kind.replace("_", " "), columns, rows)
    if accuracy.classes:
        columns = [Column("class"), Column("kind"), Column("AP", "number"), Column("AP50", "number")]
        body: list[list[Value]] = [[row.class_name, row.kind, row.ap, row.ap50] for row in accuracy.classes]
        yield Table("accuracy-classes", "By class", columns, body, searchable=True)


def _figures_of(kind: str) -> tuple[str, ...]:
    return _KEYPOINT_FIGURES if kind == "coco_keypoints" else _BOX_FIGURES


def _coco_word(name: str) -> str:
    return name[:2].upper() + name[2:]


def _figure_text(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.3f}"


def _evaluation_blocks(
    accuracy: AccuracyFigures, found: Evaluation, drawn: Sequence[Pictures]
) -> Iterator[Block]:
    """Classes, the curve and the worst images first; then all of COCO's and VOC's figures."""
    left = tell_left_out(found.left_out)
    beside = f" (left out: {left})" if left else ""
    yield Facts(list(_evaluation_facts(found, left)))
    yield from curve_blocks(found.coco_box)
    yield from class_charts(found.coco_box.classes)
    yield _classes_table(found, beside)
    yield from drawn
    if found.worst:
        columns = [Column("image", "code"), Column("missed", "count"), Column("wrong", "count")]
        columns += [Column("right", "count")]
        worst: list[list[Value]] = [[row.file, row.missed, row.wrong, row.right] for row in found.worst]
        caption = "The worst images; all are drawn in the run's folder"
        yield Table("accuracy-worst", caption, columns, worst, brief_rows=BRIEF_WORST)
    kinds = {kind: figures for kind in KINDS if (figures := getattr(accuracy, kind)) is not None}
    meaning = field_comments(CocoFigures)
    columns = [Column("figure"), Column("of"), *(Column(KINDS[kind]) for kind in kinds)]
    rows: list[list[Value]] = []
    for name in CocoFigures.__struct_fields__:
        measured = [name in _figures_of(kind) for kind in kinds]
        if any(measured):
            texts = [
                _figure_text(getattr(figures, name)) if known else ""
                for figures, known in zip(kinds.values(), measured, strict=True)
            ]
            rows.append([_coco_word(name), meaning.get(name, ""), *texts])
    yield Table("accuracy-coco", f"COCO accuracy{beside}", columns, rows, brief_rows=len(rows))
    yield _voc_table(found, beside)


def _evaluation_facts(found: Evaluation, left: str) -> Iterator[Fact]:
    counts = (("crowd", found.crowd), ("difficult", found.difficult))
    aside = ", ".join(f"{count} {name}" for name, count in counts if count)
    split = f", split {found.data.split}" if found.data and found.data.split else ""
    objects = f"{number(found.objects, 0)} objects" + (f" ({aside})" if aside else "")
    yield Fact("compared", f"{objects}, {number(found.detections, 0)} detections{split}")
    if (point := found.operating_point) is not None:
        figures = f"precision {percent(point.precision)}, recall {percent(point.recall)}"
        yield Fact("best cut", f"score {number(point.score, 2)}: {figures} at overlap 0.50")
    speed = found.throughput
    if speed is not None and speed.images_per_s is not None:
        alone = f"{number(speed.model_images_per_s)} images/s in the model alone"
        whole = f"{number(speed.images, 0)} images in {number(speed.wall_s)} s"
        yield Fact("speed", f"{number(speed.images_per_s)} images/s, loading included; {alone}; {whole}")
    if left:
        yield Fact("left out", left, "warn")


def tell_left_out(left: UncoveredData | None) -> str:
    """What the figures do not cover, in words; empty where they cover everything."""
    if left is None:
        return ""
    counts = [
        (left.images, "image", "images"),
        (left.annotations, "annotation", "annotations"),
        (left.clipped, "box cut to its image", "boxes cut to their image"),
        *((row.count, f"detection {row.reason}", f"detections {row.reason}") for row in left.detections),
    ]
    return "; ".join(f"{count:,} {one if count == 1 else many}" for count, one, many in counts if count)


def _voc_table(found: Evaluation, beside: str) -> Table:
    """VOC's list, `aeroplane 0.636` to `avg mAP 0.565`, by both definitions; else the means alone."""
    by_name = zip(found.voc07.classes, found.voc10.classes, strict=True)
    rows: list[list[Value]] = [[one.name, _figure_text(one.ap), _figure_text(two.ap)] for one, two in by_name]
    rows.append(["avg mAP", _figure_text(found.voc07.mean), _figure_text(found.voc10.mean)])
    is_voc = bool(found.difficult) or "voc" in ((found.data.name if found.data else "") or "").lower()
    columns = [Column("class"), Column("2007, 11 points"), Column("since 2010, area")]
    caption = f"VOC average precision{beside}"
    return Table(
        "accuracy-voc",
        caption,
        columns,
        rows if is_voc else rows[-1:],
        brief_rows=len(rows),
        searchable=False,
    )


def _classes_table(found: Evaluation, beside: str) -> Table:
    """Every class with its figures; AP of masks beside that of boxes."""
    masks = {row.id: row for row in found.coco_mask.classes} if found.coco_mask else {}
    columns = [Column("class"), Column("objects", "count"), Column("detections", "count")]
    columns += [Column(_coco_word(name)) for name in _CLASS_FIGURES]
    columns += [Column("mask AP"), Column("mask AP50")] if masks else []
    rows: list[list[Value]] = []
    for row in found.coco_box.classes:
        cells: list[Value] = [row.name, row.objects, row.detections]
        cells += [_figure_text(getattr(row, name)) for name in _CLASS_FIGURES]
        if masks:
            mask = masks.get(row.id)
            cells += [_figure_text(mask.ap if mask else None), _figure_text(mask.ap50 if mask else None)]
        rows.append(cells)
    caption = f"Class by class, boxes{beside}"
    return Table("accuracy-by-class", caption, columns, rows, searchable=True, brief_rows=len(rows))


def _small_pictures(folder: Path, found: Evaluation | None) -> list[tuple[str, str]]:
    """A few of the drawn images, made small enough to travel inside the page; of an evaluation the worst."""
    worst = [(row, folder / "worst" / row.picture) for row in (found.worst if found else ()) if row.picture]
    if worst:
        return [
            (
                f"{row.file}: {row.missed} missed, {row.wrong} wrong, {row.right} right",
                _shrink_picture(path, WORST_WIDTH),
            )
            for row, path in worst[:MOST_PICTURES]
            if path.is_file()
        ]
    drawn = [
        path for path in sorted((folder / "pictures").glob("*.png")) if path.stem not in _CHARTS_WITH_FILES
    ]
    drawn += sorted((folder / "pictures").glob("*.jpg"))
    return [(path.stem, _shrink_picture(path, PICTURE_WIDTH)) for path in drawn[:MOST_PICTURES]]


def _shrink_picture(path: Path, width: int) -> str:
    from io import BytesIO

    from PIL import Image

    with Image.open(path) as picture:
        picture.thumbnail((width, width))
        target = BytesIO()
        picture.convert("RGB").save(target, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(target.getvalue()).decode()}"


PART = SectionPart(
    "accuracy", 140, section, order_in={"eval": 12}, unasked=("infer", "import", "run", "record")
)
