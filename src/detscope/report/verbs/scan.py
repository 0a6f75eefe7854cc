"""A scan of inferences: a table, a picture of speed against batch size, and the same as CSV and page."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from detscope.analyze.scan import InferenceScan, ScanRow
from detscope.report.colours import PALETTE
from detscope.report.figures import interval, plain, with_unit
from detscope.report.model import Axis, Block, Chart, Column, Fact, Facts, Section, Series, Table, Tone, Value
from detscope.report.render.page import render_page
from detscope.report.render.picture import has_matplotlib, write_chart_files
from detscope.runs.atomic import write_text

_DEFINITION = (
    "Every row is a run of its own on the same images. Latency: the median pass, with its 95 % interval;"
    " images/s: images of all measured passes over their time."
)
# field of a row -> its column in the CSV; units stand in the names
_CSV = (
    *("batch_size", "threads", "precision", "latency_ms", "p95_ms", "image_ms", "images_per_s"),
    *("peak_bytes", "n", "stability", "run", "why"),
)


def scan_sections(scan: InferenceScan) -> list[Section]:
    """One section: the best, the table, the picture."""
    blocks: list[Block] = [Facts(list(_best_facts(scan)), full=False), _scan_table(scan), _scan_chart(scan)]
    return [Section("scan", "Scan", _headline(scan), _DEFINITION, blocks, brief_title=True)]


def _name_setting(row: ScanRow) -> str:
    threads = "" if row.threads is None else f", {row.threads} thread{'' if row.threads == 1 else 's'}"
    return f"batch {row.batch_size}{threads}, {row.precision}"


def _headline(scan: InferenceScan) -> str:
    if scan.fastest is None:
        return f"None of {len(scan.rows)} combinations could be measured"
    best = scan.rows[scan.fastest]
    return f"Fastest: {_name_setting(best)} with {with_unit(best.images_per_s, 'images/s')}"


def _best_facts(scan: InferenceScan) -> Iterator[Fact]:
    yield Fact("model", f"{scan.model} on {scan.device or 'cannot tell'}", "strong")
    if scan.quickest is not None:
        best = scan.rows[scan.quickest]
        yield Fact("shortest", f"{_name_setting(best)}: {with_unit(best.latency_ms, 'ms')} a pass")
    shaky = [row for row in scan.rows if row.stability == "unstable"]
    if shaky:
        text = f"{len(shaky)} of {len(scan.rows)} rows are unstable: measure again before choosing by them"
        yield Fact("trust", text, "warn")


def _scan_table(scan: InferenceScan) -> Table:
    columns = [Column("batch", "count"), Column("threads"), Column("precision"), Column("latency ms", "ms")]
    columns += [Column("95 % interval"), Column("p95 ms", "ms", brief=False), Column("ms per image", "ms")]
    columns += [Column("images/s", "number"), Column("peak", "bytes"), Column("trust")]
    columns += [Column("n", "count", brief=False), Column("run", "code", brief=False)]
    rows: list[list[Value]] = [
        [
            *(row.batch_size, "auto" if row.threads is None else str(row.threads), row.precision),
            *(row.latency_ms, interval(row.ci95), row.p95_ms, row.image_ms, row.images_per_s, row.peak_bytes),
            *(row.stability or f"failed: {row.why}", row.n, Path(row.run).name if row.run else ""),
        ]
        for row in scan.rows
    ]
    tones: list[Tone] = [
        "strong" if number == scan.fastest else "bad" if row.run is None else ""
        for number, row in enumerate(scan.rows)
    ]
    caption = f"Inference of {scan.images or 'cannot tell how many'} images, {len(rows)} combinations"
    return Table("scan-table", caption, columns, rows, tones=tones, brief_rows=len(rows))


def _scan_chart(scan: InferenceScan) -> Chart:
    groups: dict[tuple[int | None, str], list[ScanRow]] = {}
    for row in scan.rows:
        if row.images_per_s is not None:
            groups.setdefault((row.threads, row.precision), []).append(row)
    lines = []
    for number, ((threads, precision), rows) in enumerate(groups.items()):
        ordered = sorted(rows, key=lambda row: row.batch_size)
        name = precision if threads is None else f"{precision}, {threads} thread{'' if threads == 1 else 's'}"
        speeds: list[float | str | None] = [row.images_per_s for row in ordered]
        details = [f"{_name_setting(row)}: {with_unit(row.images_per_s, 'images/s')}" for row in ordered]
        at: list[float | str] = [row.batch_size for row in ordered]
        lines.append(Series(name, at, speeds, PALETTE[number % len(PALETTE)], "both", details=details))
    sizes = sorted({float(row.batch_size) for row in scan.rows})
    axes = Axis("batch size", ticks=sizes), Axis("images/s", lowest=0)
    return Chart("scan-chart", "Images per second against the batch size", lines, *axes, file="scan")


def write_scan(scan: InferenceScan, folder: Path) -> list[Path]:
    """The scan as scan.csv, scan.html and, where pictures can be drawn, scan.png."""
    sections = scan_sections(scan)
    made = "Made by detscope from the runs it lists. The file needs no network and sends nothing."
    where = f"inference on {scan.device}" if scan.device else "inference"
    page = render_page(plain(scan.model), f"{where}, {len(scan.rows)} combinations", sections, [], made)
    write_scan_csv(scan, folder)
    write_text(folder / "scan.html", page)
    pictures = write_chart_files(sections, folder) if has_matplotlib() else []
    return [folder / "scan.csv", folder / "scan.html", *pictures]


def write_scan_csv(scan: InferenceScan, folder: Path) -> None:
    """What is known so far as scan.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "scan.csv", scan_csv(scan))


def scan_csv(scan: InferenceScan) -> str:
    """One line per combination; figures in full, an unknown one is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(_CSV)
    for row in scan.rows:
        cells = [getattr(row, name) for name in _CSV]
        writer.writerow("" if cell is None else cell for cell in cells)
    return text.getvalue()
