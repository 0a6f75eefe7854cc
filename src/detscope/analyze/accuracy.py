"""How right a run is: the evaluations of a training, or what an evaluation of its own found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec
import polars as pl

from detscope.analyze.figure import Definition, Figure
from detscope.errors import InputError
from detscope.runs.reader import Run, read_json

UNDEFINED = "undefined (no ground truth)"
EVALUATION = "evaluation.json"
KINDS = {"coco_box": "boxes", "coco_mask": "masks", "coco_keypoints": "keypoints"}
# whose AP says which evaluation was best: the first of these that a run has
JUDGED_BY = ("coco_mask", "coco_keypoints", "coco_box")


def _coco_name(name: str) -> str:
    """AP50, AR_small: as COCO writes them."""
    return name[:2].upper() + name[2:] if name.startswith(("ap", "ar")) else name


class CocoFigures(Figure, frozen=True, kw_only=True, rename=_coco_name):
    """COCO's figures over all classes, or of one; None is undefined, or not measured of this kind."""

    ap: float | None = None  # overlaps 0.50 to 0.95
    ap50: float | None = None  # overlap 0.50
    ap75: float | None = None  # overlap 0.75
    ap_small: float | None = None  # objects up to 32 x 32
    ap_medium: float | None = None  # up to 96 x 96
    ap_large: float | None = None  # above
    ar_1: float | None = None  # recall, 1 detection per image and class
    ar_10: float | None = None  # recall, 10 detections
    ar_100: float | None = None  # recall, 100 detections
    ar: float | None = None  # recall, 20 detections
    ar50: float | None = None  # recall, similarity 0.50
    ar75: float | None = None  # recall, similarity 0.75
    ar_small: float | None = None  # recall, up to 32 x 32
    ar_medium: float | None = None  # recall, up to 96 x 96
    ar_large: float | None = None  # recall, above


class KindFigures(Figure, frozen=True, kw_only=True):
    """One evaluation, by every kind of measure that it allowed."""

    coco_box: CocoFigures | None = None
    coco_mask: CocoFigures | None = None
    coco_keypoints: CocoFigures | None = None
    voc07: CocoFigures | None = None  # VOC's eleven points
    voc10: CocoFigures | None = None  # VOC's area


class ClassAccuracy(
    Figure, frozen=True, kw_only=True, rename={"class_name": "class", "ap": "AP", "ap50": "AP50"}
):
    """A class in the last evaluation of a training."""

    kind: str  # coco_box, coco_mask, coco_keypoints
    class_name: str  # what it is called
    ap: float | None = None  # overlaps 0.50 to 0.95
    ap50: float | None = None  # overlap 0.50


class BestEvaluation(Figure, frozen=True, kw_only=True):
    """The evaluation with the highest AP, the first of equals."""

    kind: str  # of measure: coco_box, coco_mask, coco_keypoints
    figure: str  # that judges: AP
    value: float  # of that figure
    epoch: int  # after which it was made
    step: int  # after which it was made


class CocoClass(CocoFigures, frozen=True, kw_only=True):
    """A class in an evaluation."""

    id: int | None = None  # as the data set numbers it
    name: str  # what it is called
    objects: int | None = None  # annotated
    detections: int | None = None  # of the model


class PrecisionCurve(Figure, frozen=True, kw_only=True, rename={"class_name": "class"}):
    """Precision against recall: the best precision at each recall or beyond."""

    name: str  # what it is of
    overlap: float | None  # from which on a detection is right; None: the mean over 0.50 to 0.95
    class_name: str | None = None  # None: the mean over all classes
    precision: tuple[float, ...]  # at evenly spaced recalls from 0 to 1

    @property
    def recalls(self) -> list[float]:
        """Where the precisions are."""
        last = max(1, len(self.precision) - 1)
        return [number / last for number in range(len(self.precision))]


class CocoMeasures(Figure, frozen=True, kw_only=True):
    """COCO's measures of boxes, masks or keypoints."""

    figures: CocoFigures
    classes: tuple[CocoClass, ...]
    curves: tuple[PrecisionCurve, ...] = ()  # none where an older version evaluated


class VocClass(Figure, frozen=True, kw_only=True, rename={"ap": "AP"}):
    """A class by VOC's measure."""

    name: str  # what it is called
    ap: float | None  # average precision


class VocMeasures(Figure, frozen=True, kw_only=True):
    """VOC's measure of boxes."""

    mean: float | None  # over the classes
    classes: tuple[VocClass, ...]


class OperatingPoint(Figure, frozen=True, kw_only=True):
    """The score that balances wrong and missed best."""

    score: float  # detections above it count
    precision: float  # share of them that is right
    recall: float  # share of objects that is found
    f1: float | None = None  # harmonic mean of both


class EvaluationSpeed(Figure, frozen=True, kw_only=True):
    """How fast it went."""

    images: int | None = None  # how many
    wall_s: float | None = None  # for all of them
    images_per_s: float | None = None  # loading included
    model_images_per_s: float | None = None  # in the model alone


class LeftOutDetections(Figure, frozen=True, kw_only=True):
    """Detections that no figure covers."""

    reason: str  # why they are left out
    count: int  # how many


class UncoveredData(Figure, frozen=True, kw_only=True):
    """What the figures do not cover."""

    images: int | None = None  # that could not be read
    annotations: int | None = None  # that could not be used
    clipped: int | None = None  # boxes cut to their image
    detections: tuple[LeftOutDetections, ...] = ()


class WorstImage(Figure, frozen=True, kw_only=True):
    """An image with many errors."""

    file: str | None = None  # its name
    image_id: int | str | None = None  # as the data set numbers it
    right: int | None = None  # detections that meet an object
    wrong: int | None = None  # detections that meet none
    missed: int | None = None  # objects that no detection meets
    f1: float | None = None  # harmonic mean of precision and recall
    picture: str | None = None  # in the folder `worst`


class EvaluatedData(Figure, frozen=True, kw_only=True):
    """What was evaluated on."""

    name: str | None = None  # of the data set
    split: str | None = None  # train, val, ...
    images: int | None = None  # how many
    classes: int | None = None  # how many


class Evaluation(Figure, frozen=True, kw_only=True):
    """What `evaluation.json` holds."""

    schema: int | None = None  # of the file
    objects: int | None = None  # annotated
    crowd: int | None = None  # annotated crowds
    difficult: int | None = None  # annotated as difficult
    detections: int | None = None  # of the model
    operating_point: OperatingPoint | None = None
    coco_box: CocoMeasures
    coco_mask: CocoMeasures | None = None
    coco_keypoints: CocoMeasures | None = None
    voc07: VocMeasures
    voc10: VocMeasures
    data: EvaluatedData | None = None
    throughput: EvaluationSpeed | None = None
    left_out: UncoveredData | None = None
    worst: tuple[WorstImage, ...] = ()
    cannot_tell: tuple[str, ...] = ()  # what is not known, and why
    definitions: tuple[Definition, ...] = ()

    @property
    def verdict(self) -> str:
        """Accuracy in a sentence: the headline, and which classes are best and worst."""
        kinds = [(name, getattr(self, kind)) for kind, name in KINDS.items()]
        parts = [
            f"{name} AP {show_figure(found.figures.ap)}, AP50 {show_figure(found.figures.ap50)}"
            for name, found in kinds
            if found is not None
        ]
        ranked = sorted((one.ap, one.name) for one in self.coco_box.classes if one.ap is not None)
        if len(ranked) > 1 and ranked[0][0] < ranked[-1][0]:
            (low, worst), (high, best) = ranked[0], ranked[-1]
            parts.append(f"best class {best} ({high:.3f}), worst {worst} ({low:.3f})")
        undefined = len(self.coco_box.classes) - len(ranked)
        if undefined and ranked:
            parts.append(f"{undefined} classes without ground truth")
        return "; ".join(parts)


class AccuracyFigures(KindFigures, frozen=True, kw_only=True, rename={"ap": "AP", "ap50": "AP50"}):
    """The last evaluation of a training, or the one that a run is; its headline is that of boxes."""

    epoch: int | None = None  # after which it was made
    step: int | None = None  # after which it was made
    ap: float | None = None  # of boxes, overlaps 0.50 to 0.95
    ap50: float | None = None  # of boxes, overlap 0.50
    classes: tuple[ClassAccuracy, ...] = ()
    best: BestEvaluation | None = None
    evaluation: Evaluation | None = None


def show_figure(value: float | None) -> str:
    """Three digits, or that there was nothing to be right about."""
    return UNDEFINED if value is None else f"{value:.3f}"


def training_accuracy(run: Run) -> AccuracyFigures | None:
    """The last evaluation of a training, class by class too, and the best one; None where there was none."""
    accuracy = run.table("accuracy")
    if accuracy.height == 0:
        return None
    last = accuracy.filter(pl.col("step") == accuracy["step"].max())
    epoch = int(last["epoch"][0])
    found = figures_by_epoch(last).get(epoch, KindFigures())
    box = found.coco_box or CocoFigures()
    return AccuracyFigures(
        **{kind: getattr(found, kind) for kind in KindFigures.__struct_fields__},
        epoch=epoch,
        step=int(last["step"][0]),
        ap=box.ap,
        ap50=box.ap50,
        classes=_list_classes(last),
        best=_find_best(accuracy),
    )


def figures_by_epoch(accuracy: pl.DataFrame) -> dict[int, KindFigures]:
    """Figures over all classes after each epoch that was evaluated."""
    found: dict[int, dict[str, dict[str, float | None]]] = {}
    for row in accuracy.filter(pl.col("category").is_null()).iter_rows(named=True):
        found.setdefault(row["epoch"], {}).setdefault(row["kind"], {})[row["figure"]] = row["value"]
    return {epoch: msgspec.convert(kinds, KindFigures) for epoch, kinds in found.items()}


def _list_classes(last: pl.DataFrame) -> tuple[ClassAccuracy, ...]:
    rows: dict[tuple[str, str], dict[str, float | None]] = {}
    for row in last.filter(pl.col("category").is_not_null()).iter_rows(named=True):
        rows.setdefault((row["kind"], row["category"]), {})[row["figure"]] = row["value"]
    return tuple(
        ClassAccuracy(kind=kind, class_name=name, ap=found.get("AP"), ap50=found.get("AP50"))
        for (kind, name), found in rows.items()
    )


def _find_best(accuracy: pl.DataFrame) -> BestEvaluation | None:
    overall = accuracy.filter(pl.col("category").is_null() & (pl.col("figure") == "AP")).drop_nulls("value")
    kind = next((kind for kind in JUDGED_BY if kind in overall["kind"]), None)
    if kind is None:
        return None
    top = overall.filter(pl.col("kind") == kind).sort("value", "step", descending=[True, False])
    return BestEvaluation(
        kind=kind, figure=top["figure"][0], value=top["value"][0], epoch=top["epoch"][0], step=top["step"][0]
    )


def evaluated_accuracy(run: Run) -> AccuracyFigures | None:
    """What a run that is an evaluation found; None where it did not come to its end."""
    found = read_evaluation(run.folder)
    if found is None:
        return None
    kinds = {kind: measures.figures for kind in KINDS if (measures := getattr(found, kind)) is not None}
    box = found.coco_box.figures
    return AccuracyFigures(
        **kinds,
        voc07=CocoFigures(ap=found.voc07.mean),
        voc10=CocoFigures(ap=found.voc10.mean),
        ap=box.ap,
        ap50=box.ap50,
        evaluation=found,
    )


class _ReadClass(TypedDict):
    """Figures of one class."""

    name: str
    AP: float | None


class _ReadHeadline(TypedDict):
    """Figures over all classes that a sentence names."""

    AP: float | None
    AP50: float | None


class _ReadCoco(TypedDict):
    """COCO's measures in the file."""

    figures: _ReadHeadline
    classes: list[_ReadClass]


class _ReadVoc(TypedDict):
    """VOC's measures in the file."""

    mean: float | None
    classes: list[_ReadClass]


class _ReadEvaluation(TypedDict):
    """What must be in the file; the rest is checked when it is converted."""

    coco_box: _ReadCoco
    coco_mask: NotRequired[_ReadCoco]
    coco_keypoints: NotRequired[_ReadCoco]
    voc07: _ReadVoc
    voc10: _ReadVoc


def read_evaluation(folder: Path) -> Evaluation | None:
    """The content of a run's `evaluation.json`; None where it evaluated nothing, or did not finish."""
    path = folder / EVALUATION
    if not path.exists():
        return None
    hint = "evaluate again, or restore the file"
    found: Mapping[str, Any] = read_json(path, _ReadEvaluation, hint)
    told = {key: value for key, value in found.items() if value is not None}
    definitions, left = told.get("definitions") or {}, told.get("left_out")
    told["definitions"] = [{"name": name, "text": text} for name, text in definitions.items()]
    if isinstance(left, dict) and isinstance(left.get("detections"), dict):
        reasons = [{"reason": reason, "count": count} for reason, count in left["detections"].items()]
        told["left_out"] = {**left, "detections": reasons}
    try:
        return msgspec.convert(told, Evaluation)
    except msgspec.ValidationError as error:
        raise InputError(f"{path} cannot be used: {error}", hint) from error
