"""What `detscope data check` found, for a terminal: findings, content, and what it will cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from detscope.report.figures import cell, count, is_number, mapping, number, percent, plain, rows, sentences
from detscope.report.terminal_tables import figure_table

FINDINGS_SHOWN = 20
CLASSES_SHOWN = 12
BAR_CELLS = 32

Check = Mapping[str, Any]


def render_check(check: Check, console: Console, folder: str | None = None) -> None:
    """Print a check as tables."""
    console.print(_headline(check), markup=False)
    for note in sentences(check, "notes"):
        console.print(f"note: {note}", markup=False)
    _findings(check, console)
    figures = mapping(check, "figures")
    _facts(check, figures, console)
    for key, title in (
        ("image_size", "Image sizes"),
        ("boxes_per_image", "Boxes per image"),
        ("box_size", "Box sizes"),
        ("classes", "Classes"),
    ):
        _histogram(mapping(mapping(figures, "histograms"), key), title, console)
    _costs(mapping(figures, "cost"), console)
    if folder is not None:
        console.print(
            f"\nwritten: {plain(folder)} (check.json, images.csv, histograms.png)",
            markup=False,
            soft_wrap=True,
        )


def _headline(check: Check) -> str:
    splits = ", ".join(f"{name} {count(images)}" for name, images in mapping(check, "splits").items())
    errors, found = check.get("errors", 0), len(rows(check, "findings"))
    verdict = f"{_counted(errors, 'error')}" if errors else "nothing wrong"
    notes = f", {_counted(found - errors, 'note')}" if found > errors else ""
    what = f"{plain(check.get('name', ''))} ({plain(check.get('layout', ''))})"
    return f"{what}: images {splits}: {verdict}{notes}"


def _counted(number_of: int, what: str) -> str:
    return f"{count(number_of)} {what}" if number_of == 1 else f"{count(number_of)} {what}s"


def _findings(check: Check, console: Console) -> None:
    found = sorted(rows(check, "findings"), key=lambda finding: finding.get("kind") != "error")
    if not found:
        return
    table = figure_table("Findings", ["kind", "split", "image", "annotation", "reason"], [])
    for finding in found[:FINDINGS_SHOWN]:
        number_of = finding.get("annotation_id")
        table.add_row(
            cell(finding.get("kind"), "bold" if finding.get("kind") == "error" else "dim"),
            cell(finding.get("split")),
            cell(finding.get("image")),
            cell("" if number_of is None else number_of),
            cell(finding.get("reason")),
        )
    console.print()
    console.print(table)
    if len(found) > FINDINGS_SHOWN:
        console.print(f"... and {len(found) - FINDINGS_SHOWN} more, all in check.json", markup=False)


def _facts(check: Check, figures: Check, console: Console) -> None:
    repeated = rows(check, "duplicates")
    leaked = sum(bool(group.get("across_splits")) for group in repeated)
    table = figure_table("Content", ["what"], ["count"])
    for what, value in (
        ("images", figures.get("images")),
        ("images that open", figures.get("usable_images")),
        ("images without objects", figures.get("images_without_objects")),
        ("images turned by EXIF", figures.get("turned_by_exif")),
        ("images of the same content (groups)", len(repeated)),
        ("... of them trained on and evaluated on", leaked),
        ("objects", figures.get("objects")),
        ("crowd regions (not trained on, ignored in evaluation)", figures.get("crowd")),
        ("difficult objects (not trained on, ignored in evaluation)", figures.get("difficult")),
        ("classes", len(check.get("classes") or ())),
    ):
        table.add_row(what, count(value))
    for name, images in mapping(figures, "formats").items():
        table.add_row(cell(f"format {name}"), count(images))
    console.print()
    console.print(table)


def _histogram(histogram: Check, title: str, console: Console) -> None:
    labels, counts = list(histogram.get("labels") or ()), list(histogram.get("counts") or ())
    if not labels:
        return
    unit = f", {plain(histogram['unit'])}" if histogram.get("unit") else ""
    table = figure_table(f"{title}{unit}", ["", ""], ["count"])
    most = max(counts) or 1
    for label, value in list(zip(labels, counts, strict=True))[:CLASSES_SHOWN]:
        table.add_row(
            cell(label), "#" * max(1 if value else 0, round(BAR_CELLS * value / most)), count(value)
        )
    console.print()
    console.print(table)
    if len(labels) > CLASSES_SHOWN:
        rest: Sequence[int] = counts[CLASSES_SHOWN:]
        console.print(f"... and {len(rest)} more, {count(sum(rest))} together", markup=False)


def _costs(cost: Check, console: Console) -> None:
    if not cost:
        return
    table = figure_table("What will dominate cost", ["figure"], ["median", "95 %", "largest"])
    for title, key in (
        ("megapixels to decode per image", "decoded_megapixels"),
        ("megapixels the network sees per image", "network_megapixels"),
        ("boxes per image", "boxes_per_image"),
    ):
        spread = mapping(cost, key)
        table.add_row(title, *(number(spread.get(name)) for name in ("median", "p95", "largest")))
    console.print()
    console.print(table)
    console.print(f"the network's size: {plain(cost.get('network_resize', ''))}", markup=False)
    for batch, shares in mapping(cost, "padding_share").items():
        console.print(
            f"padding in batches of {batch}: {percent(shares.get('random'))} of the pixels in random order, "
            f"{percent(shares.get('grouped_by_aspect'))} with data.group_by_aspect = true",
            markup=False,
            soft_wrap=True,
        )
    if is_number(cost.get("small_objects_share")):
        console.print(
            f"objects below 32 x 32 pixels: {percent(cost.get('small_objects_share'))}", markup=False
        )
    console.print(
        f"masks of the fullest image, if masks are trained: {number(cost.get('largest_masks_megabytes'))} MB",
        markup=False,
    )
