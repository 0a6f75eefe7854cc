"""An evaluation on a terminal: COCO's figures, class by class, VOC's list, the worst images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from detscope.report.figures import CANNOT_TELL, cell, is_number, mapping, number, percent, plain, rows
from detscope.report.terminal_tables import figure_table

Summary = Mapping[str, Any]
Line = tuple[str, str, str]

UNDEFINED = "undefined"
SHOWN_WORST = 5
_NOTHING = "-"  # in narrow columns, with its meaning below
_KINDS = {"coco_box": "boxes", "coco_mask": "masks", "coco_keypoints": "keypoints"}
_MEANING = {
    "AP": "overlaps 0.50 to 0.95",
    "AP50": "overlap 0.50",
    "AP75": "overlap 0.75",
    "AP_small": "objects up to 32 x 32",
    "AP_medium": "up to 96 x 96",
    "AP_large": "above",
    "AR_1": "recall, 1 detection per image and class",
    "AR_10": "recall, 10 detections",
    "AR_100": "recall, 100 detections",
    "AR": "recall, 20 detections",
    "AR50": "recall, similarity 0.50",
    "AR75": "recall, similarity 0.75",
    "AR_small": "recall, up to 32 x 32",
    "AR_medium": "recall, up to 96 x 96",
    "AR_large": "recall, above",
}
_LEFT_OUT = {
    "images": ("image", "images"),
    "annotations": ("annotation", "annotations"),
    "clipped": ("box cut to its image", "boxes cut to their image"),
}
_CLASS_FIGURES = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large", "AR_100")


def evaluation_of(summary: Summary) -> Mapping[str, Any]:
    """What the run's `evaluation.json` holds; empty where there is none."""
    return mapping(mapping(summary, "accuracy"), "evaluation")


def evaluation_lines(summary: Summary) -> Iterator[Line]:
    """What was compared, how fast, and how much is not part of the figures."""
    found = evaluation_of(summary)
    if not found:
        yield "accuracy", CANNOT_TELL, "bold"
        return
    aside = ", ".join(f"{found[key]} {key}" for key in ("crowd", "difficult") if found.get(key))
    objects = f"{number(found.get('objects'), 0)} objects" + (f" ({aside})" if aside else "")
    split = plain(mapping(found, "data").get("split") or "")
    detections = f"{number(found.get('detections'), 0)} detections"
    yield "compared", f"{objects}, {detections}" + (f", split {split}" if split else ""), ""
    point = mapping(found, "operating_point")
    if point:
        figures = f"precision {percent(point.get('precision'))}, recall {percent(point.get('recall'))}"
        yield "best cut", f"score {number(point.get('score'), 2)}: {figures} at overlap 0.50", ""
    speed = mapping(found, "throughput")
    if is_number(speed.get("images_per_s")):
        whole = f"{number(speed['images_per_s'])} images/s, loading included"
        model = f"{number(speed.get('model_images_per_s'))} images/s in the model alone"
        total = f"{number(speed.get('images'), 0)} images in {number(speed.get('wall_s'))} s"
        yield "speed", f"{whole}; {model}; {total}", ""
    if text := left_out_text(found):
        yield "left out", text, "yellow"


def left_out_text(found: Mapping[str, Any]) -> str:
    """What the figures do not cover, in words; empty where they cover everything."""
    left = mapping(found, "left_out")
    counts = [(left.get(key), one, many) for key, (one, many) in _LEFT_OUT.items()]
    counts += [
        (count, f"detection {plain(why)}", f"detections {plain(why)}")
        for why, count in mapping(left, "detections").items()
    ]
    said = [(count, one if count == 1 else many) for count, one, many in counts]
    return "; ".join(f"{count:,} {text}" for count, text in said if is_number(count) and count)


def figures_table(summary: Summary) -> Table | None:
    """COCO's figures for boxes, masks and keypoints beside each other."""
    found = evaluation_of(summary)
    kinds = [kind for kind in _KINDS if kind in found]
    if not kinds:
        return None
    table = figure_table(_title("COCO accuracy", found), ["figure", "of"], [_KINDS[kind] for kind in kinds])
    figures = {kind: mapping(mapping(found, kind), "figures") for kind in kinds}
    for name, meaning in _MEANING.items():
        if any(name in figures[kind] for kind in kinds):
            values = [value_text(figures[kind][name]) if name in figures[kind] else "" for kind in kinds]
            table.add_row(name, meaning, *values, style="bold" if name == "AP" else "")
    return table


def classes_table(summary: Summary) -> Table | None:
    """Every class with its figures; AP of masks beside that of boxes."""
    found = evaluation_of(summary)
    classes = rows(mapping(found, "coco_box"), "classes")
    if not classes:
        return None
    masks = {row.get("id"): row for row in rows(mapping(found, "coco_mask"), "classes")}
    short = [name.replace("AP_", "").replace("AR_100", "AR") for name in _CLASS_FIGURES]
    heads = ["objects", "detections", *short, *(["mask AP", "mask AP50"] if masks else [])]
    table = figure_table(_title("Class by class, boxes", found), ["class"], heads)
    for row in classes:
        given = [row.get(name) for name in _CLASS_FIGURES]
        given += [masks.get(row.get("id"), {}).get(name) for name in ("AP", "AP50")] if masks else []
        values = [value_text(value, _NOTHING) for value in given]
        counts = [number(row.get(key), 0) for key in ("objects", "detections")]
        table.add_row(cell(row.get("name")), *counts, *values)
    if any(row.get(name) is None for row in classes for name in _CLASS_FIGURES):
        table.caption, table.caption_justify = f"{_NOTHING}: undefined (no ground truth)", "left"
    return table


def voc_table(summary: Summary) -> Table | None:
    """VOC's list, `aeroplane: 0.636` to `avg mAP: 0.565`, by both definitions; for VOC's data only."""
    found = evaluation_of(summary)
    if not (found.get("difficult") or _is_voc(found)):
        return None
    table = Table(box=None, pad_edge=False, padding=(0, 4, 0, 0), title_justify="left", title_style="bold")
    table.title = _title("VOC average precision", found)
    table.header_style = "dim"
    table.add_column("2007, 11 points", no_wrap=True)
    table.add_column("since 2010, area", no_wrap=True)
    both = [voc_lines(mapping(found, kind)) for kind in ("voc07", "voc10")]
    for first, second in zip(*both, strict=True):
        table.add_row(Text(first), Text(second))
    return table


def voc_lines(found: Mapping[str, Any]) -> list[str]:
    """The list people know."""
    listed = [f"{plain(row.get('name'))}: {value_text(row.get('AP'))}" for row in rows(found, "classes")]
    return [*listed, f"avg mAP: {value_text(found.get('mean'))}"]


def voc_line(summary: Summary) -> Iterator[Line]:
    """Both means of VOC's measure, where its list is not shown."""
    found = evaluation_of(summary)
    if found and not (found.get("difficult") or _is_voc(found)):
        seven, ten = (value_text(mapping(found, kind).get("mean")) for kind in ("voc07", "voc10"))
        yield "VOC", f"avg mAP {seven} (11 points, 2007), {ten} (area, since 2010); by class with --json", ""


def worst_lines(summary: Summary) -> Iterator[Line]:
    """The first of the worst images; all of them are drawn."""
    found = evaluation_of(summary)
    worst = rows(found, "worst")
    for index, row in enumerate(worst[:SHOWN_WORST]):
        what = ", ".join(f"{number(row.get(key), 0)} {key}" for key in ("missed", "wrong", "right"))
        yield "worst" if index == 0 else "", f"{plain(row.get('file'))}: {what}", ""
    if len(worst) > SHOWN_WORST:
        yield "", f"and {len(worst) - SHOWN_WORST} more, all drawn", ""


def value_text(value: Any, undefined: str = UNDEFINED) -> str:
    """A figure of accuracy with three digits; `undefined` where there is no ground truth."""
    return f"{value:.3f}" if is_number(value) else undefined


def _is_voc(found: Mapping[str, Any]) -> bool:
    return "voc" in plain(mapping(found, "data").get("name")).lower()


def _title(text: str, found: Mapping[str, Any]) -> str:
    """What is left out stands beside every figure."""
    left = left_out_text(found)
    return f"{text} (left out: {left})" if left else text
