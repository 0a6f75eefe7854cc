"""What `detscope data check` found: findings, content, and what it will cost."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from detscope.report.colours import BLUE
from detscope.report.figures import count, number, percent
from detscope.report.model import Axis, Block, Chart, Column, Fact, Facts, Section, Series, Table, Value

BRIEF_FINDINGS, BRIEF_BARS, MOST_BARS = 20, 12, 14
_HISTOGRAMS = {
    "image_size": "Image sizes",
    "boxes_per_image": "Boxes per image",
    "box_size": "Box sizes",
    "classes": "Classes",
}
_COSTS = {
    "decoded_megapixels": "megapixels to decode per image",
    "network_megapixels": "megapixels the network sees per image",
    "boxes_per_image": "boxes per image",
}


class CheckFinding(msgspec.Struct, frozen=True):
    """Something that is wrong, or worth knowing."""

    kind: str = ""
    split: str = ""
    image: str | None = None
    annotation_id: int | str | None = None
    reason: str = ""


class Histogram(msgspec.Struct, frozen=True):
    """How often each kind of something occurs."""

    labels: list[str | float] = []
    counts: list[int] = []
    unit: str | None = None


class Spread(msgspec.Struct, frozen=True):
    """Three places of a distribution."""

    median: float | None = None
    p95: float | None = None
    largest: float | None = None


class PaddingShare(msgspec.Struct, frozen=True):
    """How much of a batch is padding."""

    random: float | None = None
    grouped_by_aspect: float | None = None


class CheckCost(msgspec.Struct, frozen=True):
    """What will dominate the cost of training."""

    decoded_megapixels: Spread | None = None
    network_megapixels: Spread | None = None
    boxes_per_image: Spread | None = None
    network_resize: str = ""
    padding_share: dict[str, PaddingShare] = {}
    small_objects_share: float | None = None
    largest_masks_megabytes: float | None = None


class CheckFigures(msgspec.Struct, frozen=True):
    """What is in the data set."""

    images: int | None = None
    usable_images: int | None = None
    images_without_objects: int | None = None
    turned_by_exif: int | None = None
    objects: int | None = None
    crowd: int | None = None
    difficult: int | None = None
    formats: dict[str, int] = {}
    histograms: dict[str, Histogram] = {}
    cost: CheckCost | None = None


class RepeatedImage(msgspec.Struct, frozen=True):
    """Images of the same content."""

    across_splits: bool = False


class DataCheck(msgspec.Struct, frozen=True):
    """What check.json holds, as far as it is shown."""

    name: str = ""
    layout: str = ""
    splits: dict[str, int] = {}
    errors: int = 0
    notes: list[str] = []
    findings: list[CheckFinding] = []
    duplicates: list[RepeatedImage] = []
    classes: list[str] = []
    figures: CheckFigures = CheckFigures()


def check_sections(check: DataCheck, folder: str | None = None) -> list[Section]:
    """Everything that a check tells, in one section."""
    blocks: list[Block] = [Facts([Fact("note", note, "warn") for note in check.notes])]
    found = sorted(check.findings, key=lambda finding: finding.kind != "error")
    columns = [
        Column("kind"),
        Column("split"),
        Column("image"),
        Column("annotation"),
        Column("reason", "sentence"),
    ]
    rows: list[list[Value]] = [
        [
            row.kind,
            row.split,
            row.image,
            "" if row.annotation_id is None else str(row.annotation_id),
            row.reason,
        ]
        for row in found
    ]
    blocks += [
        Table("findings", "Findings", columns, rows, brief_rows=BRIEF_FINDINGS),
        _content_table(check),
        *_histogram_blocks(check.figures),
    ]
    if check.figures.cost is not None:
        blocks += _cost_blocks(check.figures.cost)
    if folder is not None:
        blocks.append(Facts([Fact("written", f"{folder} (check.json, images.csv, histograms.png)")]))
    return [Section("check", "Check", _headline(check), "", blocks, brief_title=True)]


def histogram_charts(check: DataCheck) -> list[Chart]:
    """The charts of `histograms.png`."""
    return [block for block in _histogram_blocks(check.figures) if isinstance(block, Chart)]


def _headline(check: DataCheck) -> str:
    splits = ", ".join(f"{name} {count(images)}" for name, images in check.splits.items())
    notes = len(check.findings) - check.errors
    verdict = _counted(check.errors, "error") if check.errors else "nothing wrong"
    more = f", {_counted(notes, 'note')}" if notes > 0 else ""
    return f"{check.name} ({check.layout}): images {splits}: {verdict}{more}"


def _counted(many: int, what: str) -> str:
    return f"{count(many)} {what}" + ("" if many == 1 else "s")


def _content_table(check: DataCheck) -> Table:
    figures = check.figures
    rows: list[list[Value]] = [
        ["images", figures.images],
        ["images that open", figures.usable_images],
        ["images without objects", figures.images_without_objects],
        ["images turned by EXIF", figures.turned_by_exif],
        ["images of the same content (groups)", len(check.duplicates)],
        ["... of them trained on and evaluated on", sum(one.across_splits for one in check.duplicates)],
        ["objects", figures.objects],
        ["crowd regions (not trained on, ignored in evaluation)", figures.crowd],
        ["difficult objects (not trained on, ignored in evaluation)", figures.difficult],
        ["classes", len(check.classes)],
    ]
    rows += [[f"format {name}", images] for name, images in figures.formats.items()]
    columns = [Column("what"), Column("count", "count")]
    return Table("content", "Content", columns, rows, brief_rows=len(rows))


def _histogram_blocks(figures: CheckFigures) -> Iterator[Block]:
    for key, title in _HISTOGRAMS.items():
        histogram = figures.histograms.get(key, Histogram())
        bars = [(str(name), many) for name, many in zip(histogram.labels, histogram.counts, strict=True)]
        if not bars:
            continue
        caption = f"{title}, {histogram.unit}" if histogram.unit else title
        whole = sum(many for _, many in bars) or 1
        columns = [Column(""), Column("count", "count"), Column("share", "share")]
        rows: list[list[Value]] = [[name, many, many / whole] for name, many in bars]
        yield Table(f"histogram-{key}", caption, columns, rows, brief_rows=BRIEF_BARS)
        shown = bars if len(bars) <= MOST_BARS else bars[: MOST_BARS - 1]
        if len(shown) < len(bars):
            rest = bars[len(shown) :]
            shown = [*shown, (f"{len(rest)} others", sum(many for _, many in rest))]
        names, values = [name for name, _ in shown], [float(many) for _, many in shown]
        texts = [count(many) for many in values]
        series = Series(title, values, names, BLUE, "bars", texts=texts)
        yield Chart(f"chart-{key}", caption, [series], Axis("count"), Axis(falling=True), legend="none")


def _cost_blocks(cost: CheckCost) -> Iterator[Block]:
    columns = [Column("figure"), *(Column(name, "number") for name in ("median", "95 %", "largest"))]
    spreads = {title: getattr(cost, key) or Spread() for key, title in _COSTS.items()}
    rows: list[list[Value]] = [
        [title, spread.median, spread.p95, spread.largest] for title, spread in spreads.items()
    ]
    yield Table("cost", "What will dominate cost", columns, rows, brief_rows=len(rows))
    facts = [Fact("size", f"the network's: {cost.network_resize}")]
    for batch, shares in cost.padding_share.items():
        grouped = f"{percent(shares.grouped_by_aspect)} with data.group_by_aspect = true"
        random = f"{percent(shares.random)} of the pixels in random order"
        facts.append(Fact("padding", f"in batches of {batch}: {random}, {grouped}"))
    if cost.small_objects_share is not None:
        facts.append(Fact("small", f"objects below 32 x 32 pixels: {percent(cost.small_objects_share)}"))
    masks = f"of the fullest image, if masks are trained: {number(cost.largest_masks_megabytes)} MB"
    yield Facts([*facts, Fact("masks", masks)])
