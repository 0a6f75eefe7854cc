"""Listings of Nsight Compute as CSV: long, wide (`--page raw`), the details page, and tables made of them.

Columns are found by name, so 12, 15, 18 or 20 of them are all the same. Lines that are not part of a
listing (==PROF==, the program's own output) are counted and passed over wherever they stand. A kernel is a
launch id of one process in one listing: equal ids of two processes are two kernels. Values keep the
listing's meaning but not its prefixes: times are in ns, sizes in byte, rates per second.
"""

from __future__ import annotations

import codecs
import csv
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path

from detscope.errors import InputError
from detscope.ingest.files import RecordedFile
from detscope.ingest.sink import Format, Sink
from detscope.limits import over_limit, read_limit

PERMISSION = "ERR_NVGPUCTRPERM"
MAX_LINES_OF_A_ROW = 50
_HEAD_BYTES = 4096
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_DELIMITERS = (",", ";", "\t")
_ROW_BEGIN = re.compile(r'"\d+","\d+","')

_SPACES = dict.fromkeys(map(ord, " \t\u00a0\u202f\u2009\u2007'\u2019\u066c"), None)
_SHAPE = re.compile(r"[-+]?[\d.,\u066b]+(?:[eE][-+]?\d{1,3})?")
_PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NANOSECONDS = {"n": 1.0, "u": 1e3, "m": 1e6, "": 1e9}
_TIME = re.compile(r"^(n|u|m|)(?:s|sec|second|seconds)$")
_SCALED = re.compile(
    r"^([KkMGT]?)(byte|bytes|hz|inst|cycle|sector|request|warp|thread|block|flop|instruction)s?$"
)
DOT, COMMA = ".", ","

ROWS_AT_ONCE = 100_000
COLUMNS = ("process", "device", "kernel", "name", "metric", "unit", "value")
# columns that say which kernel it is; all others of a wide listing are metrics
_DESCRIPTION = {
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream",
    "Block Size", "Grid Size", "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value",
    "Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup",
}  # fmt: skip
_RANGE_COLUMNS = ("Thread Domain", "Id:Domain", "<default domain>")
_ABSENT = {"", "n/a", "nan", "no data", "-", "none", "inf", "-inf"}
_SM_THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"

# (name on the details page, unit without prefix or "" for any) -> metric
_METRICS = {
    ("Compute (SM) Throughput", ""): _SM_THROUGHPUT,
    ("SM Throughput", ""): _SM_THROUGHPUT,
    ("SM [%]", ""): _SM_THROUGHPUT,
    ("Elapsed Cycles", ""): "gpc__cycles_elapsed.max",
    ("SM Active Cycles", ""): "sm__cycles_active.avg",
    ("SM Frequency", ""): "gpc__cycles_elapsed.avg.per_second",
    ("DRAM Frequency", ""): "dram__cycles_elapsed.avg.per_second",
    ("Duration", ""): "gpu__time_duration.sum",
    ("Memory Throughput", "%"): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("Memory [%]", ""): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("Memory Throughput", "byte/second"): "dram__bytes.sum.per_second",
    ("DRAM Throughput", "%"): "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ("L1/TEX Cache Throughput", ""): "l1tex__throughput.avg.pct_of_peak_sustained_active",
    ("L2 Cache Throughput", ""): "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    ("L1/TEX Hit Rate", ""): "l1tex__t_sector_hit_rate.pct",
    ("L2 Hit Rate", ""): "lts__t_sector_hit_rate.pct",
    ("Executed Ipc Active", ""): "sm__inst_executed.avg.per_cycle_active",
    ("Executed Ipc Elapsed", ""): "sm__inst_executed.avg.per_cycle_elapsed",
    ("Issued Ipc Active", ""): "sm__inst_issued.avg.per_cycle_active",
    ("Issue Slots Busy", ""): "sm__inst_issued.avg.pct_of_peak_sustained_active",
    ("Achieved Occupancy", ""): "sm__warps_active.avg.pct_of_peak_sustained_active",
    ("Theoretical Occupancy", ""): "sm__maximum_warps_per_active_cycle_pct",
    ("Achieved Active Warps Per SM", ""): "sm__warps_active.avg.per_cycle_active",
    ("Registers Per Thread", ""): "launch__registers_per_thread",
    ("Block Size", ""): "launch__block_size",
    ("Grid Size", ""): "launch__grid_size",
    ("Threads", ""): "launch__thread_count",
    ("Waves Per SM", ""): "launch__waves_per_multiprocessor",
}

_LONG = re.compile(r'"?ID"?\s*[,;\t]\s*"?Process ID"?')
_PIVOT = re.compile(r'^\s*"?Metric Name"?\s*[,;\t].*\b\w+__\w+\.', re.MULTILINE)
_TOOL = re.compile(r"^==(?:PROF|WARNING|ERROR)==", re.MULTILINE)


@dataclass
class Listing:
    """One header and its rows, which are read once; the counts are complete afterwards."""

    header: list[str]
    rows: Iterator[list[str]]
    log_lines: int = 0
    rule_rows: int = 0
    bad_rows: int = 0
    names: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for position, name in enumerate(self.header):
            self.names.setdefault(name, position)

    @property
    def is_long(self) -> bool:
        """One row per kernel and metric."""
        return "Metric Name" in self.names and "Metric Value" in self.names


def _find_encoding(head: bytes) -> str:
    """By byte order mark; without one, text full of zero bytes is UTF-16."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    sample = head[:400]
    if sample.count(0) > len(sample) // 4:
        return "utf-16-le" if sample[1::2].count(0) >= sample[::2].count(0) else "utf-16-be"
    return "utf-8"


def _read_lines(path: Path) -> Iterator[str]:
    """Lines without their ends; a line without end is cut into pieces, so that memory stays bounded.

    Of a file that is packed and cut, what came until there counts.
    """
    recorded = RecordedFile(path)
    most, longest = recorded.most_bytes, read_limit("listing_line_bytes")
    pieces = recorded.read_pieces(1 << 18)
    head = next(pieces, b"")
    if recorded.error and len(head) < _HEAD_BYTES:
        raise InputError(f"{path.name} cannot be unpacked: {recorded.error}", "copy the file again")
    decoder = codecs.getincrementaldecoder(_find_encoding(head))("replace")
    rest, size = "", 0
    for piece in chain([head], pieces, [b""]):
        size += len(piece)
        if size > most:
            raise over_limit("recording_ratio", path.name)
        *whole, rest = (rest + decoder.decode(piece, final=not piece)).split("\n")
        for line in whole:
            yield line.rstrip("\r")
        if len(rest) > longest:
            yield rest
            rest = ""
    if rest:
        yield rest


class ListingReader:
    """The listings of a file, one after the other."""

    def __init__(self, path: Path) -> None:
        self.is_forbidden = False  # the tool says that it was not allowed to read counters
        self._lines = _read_lines(path)
        self._put_back: list[str] = []

    def read_listings(self) -> Iterator[Listing]:
        """Every listing; its rows must be read before the next is asked for."""
        skipped = 0
        while (line := self._next_line()) is not None:
            header = _read_header(line)
            if header is None:
                skipped += 1
                continue
            listing = Listing(header[0], iter(()), log_lines=skipped)
            listing.rows = self._read_rows(listing, header[1])
            yield listing
            skipped = 0

    def _next_line(self) -> str | None:
        line = self._put_back.pop() if self._put_back else next(self._lines, None)
        if line is not None and line.startswith("==") and PERMISSION in line:
            self.is_forbidden = True
        return line

    def _read_rows(self, listing: Listing, delimiter: str) -> Iterator[list[str]]:
        """Rows with an id, and the row of units whose id is empty."""
        while (line := self._next_line()) is not None:
            if _read_header(line) is not None:
                self._put_back.append(line)
                return
            start = line.lstrip()[:1]
            if not (start == '"' or start.isdigit() or start == delimiter):
                listing.log_lines += bool(line.strip())
                continue
            cells = self._read_row(line, delimiter)
            if cells is None:
                listing.bad_rows += 1
            elif cells[0].strip().isdigit() or (cells[0].strip() == "" and len(cells) > 2):
                yield cells
            else:
                listing.log_lines += 1

    def _read_row(self, line: str, delimiter: str) -> list[str] | None:
        """A row whose last cell may go on over several lines; None if it never ends."""
        taken = [line]
        while sum(text.count('"') for text in taken) % 2:
            more = self._next_line()
            if more is not None:
                taken.append(more)
            # `"12","345",...`: a new row begins, so the one before was cut
            if more is None or len(taken) > MAX_LINES_OF_A_ROW + 1 or _ROW_BEGIN.match(more):
                self._put_back += reversed(taken[1:])
                return None
        return _split_cells("\n".join(taken), delimiter)


def _read_header(line: str) -> tuple[list[str], str] | None:
    """The columns and the delimiter of a header, also where a program's last words stand right before it."""
    if ("Metric Name" not in line and "Kernel Name" not in line) or len(line) > read_limit(
        "listing_line_bytes"
    ):
        return None
    at = max(line.find('"ID"'), 0)
    for delimiter in _DELIMITERS:
        names = [cell.strip().lstrip("\ufeff") for cell in _split_cells(line[at:], delimiter) or []]
        if len(names) > 2 and (
            (names[0] == "ID" and "Kernel Name" in names)
            or (names[0] == "Metric Name" and any("__" in name for name in names))
            or ("Kernel Name" in names and "Invocations" in names)
        ):
            return names, delimiter
    return None


def _split_cells(line: str, delimiter: str) -> list[str] | None:
    try:
        return next(csv.reader([line], delimiter=delimiter), None)
    except csv.Error:
        return None


def find_decimal_mark(texts: Iterable[str]) -> str:
    """The decimal mark of a listing, by its values that allow one reading only; a dot where none does.

    "1,234.5", "1,234,567" and "3.37" speak for the dot; "12.345,6", "0,125" and "3,37" for the comma;
    "12,345" alone says nothing, and is then 12345 as NVIDIA's tools print it.
    """
    votes = {DOT: 0, COMMA: 0}
    for text in texts:
        mark = _find_evident_mark(_strip_cell(text))
        if mark:
            votes[mark] += 1
    return COMMA if votes[COMMA] > votes[DOT] else DOT


def parse_number(text: str, mark: str = DOT) -> float | None:
    """The number in a cell; None where there is none ("n/a", "", "nan")."""
    bare = _strip_cell(text)
    if not _SHAPE.fullmatch(bare):
        return None
    bare = bare.replace("\u066b", DOT)
    own = _find_evident_mark(bare) or mark
    other = COMMA if own == DOT else DOT
    bare = bare.replace(other, "")
    if bare.count(own) > 1:
        bare = bare.replace(own, "")
    try:
        value = float(bare.replace(own, "."))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _strip_cell(text: str) -> str:
    """Without spaces that group digits, without a percent sign, without the list of instances behind."""
    return text.split("(", 1)[0].strip().rstrip("%").translate(_SPACES) if text else ""


def _find_evident_mark(bare: str) -> str | None:
    """The decimal mark, where only one reading makes sense."""
    dots, commas = bare.count(DOT), bare.count(COMMA)
    if dots and commas:
        return max((DOT, COMMA), key=bare.rfind)
    if dots + commas == 0:
        return None
    mark, other = (DOT, COMMA) if dots else (COMMA, DOT)
    if dots + commas > 1:
        return other  # "1,234,567": what repeats is no decimal mark
    before, _, after = bare.lstrip("+-").partition(mark)
    grouped = len(after) == 3 and after.isdigit() and 1 <= len(before) <= 3 and not before.startswith("0")
    return None if grouped else mark


def base_unit(unit: str) -> tuple[str, float]:
    """The unit without prefix and the factor to it: times in ns, rates per second."""
    unit = unit.strip()
    above, slash, below = unit.partition("/")
    name, factor = _split_prefix(above)
    if not slash:
        return name, factor
    duration = _TIME.match(below)
    if duration:
        return f"{name}/second", factor * 1e9 / _NANOSECONDS[duration[1]]
    below_name, below_factor = _split_prefix(below)
    return f"{name}/{below_name}", factor / below_factor


def _split_prefix(unit: str) -> tuple[str, float]:
    duration = _TIME.match(unit)
    if duration:
        return "ns", _NANOSECONDS[duration[1]]
    scaled = _SCALED.match(unit) or _SCALED.match(unit.lower()) or _SCALED.match(unit[:1] + unit[1:].lower())
    if scaled:
        return scaled[2].removesuffix("s"), _PREFIXES[scaled[1]]
    return unit, 1.0


@dataclass
class _Kernel:
    """One launch: its number in the file, what the listing says of it, and the metrics seen so far."""

    number: int
    process: int | None
    device: int | None
    name: str
    metrics: set[str] = field(default_factory=set)


class KernelTable:
    """Collects kernels in the order of the file; rows leave in pieces of bounded size per listing."""

    def __init__(self, sink: Sink) -> None:
        self.layouts: set[str] = set()
        self.kernel_count = 0
        self._sink = sink
        self._kernels: dict[tuple[str, str], _Kernel] = {}  # of the listing, by process and id
        self._units: dict[str, str | None] = {}  # of all metrics of the listing
        self._rows: list[tuple[object, ...]] = []

    def add_listing(self, listing: Listing) -> None:
        """Take all rows of a listing; a metric that a kernel lacks is a row without value, and counted."""
        self._kernels, self._units = {}, {}
        (self._add_long if listing.is_long else self._add_wide)(listing)
        for kernel in self._kernels.values():
            for metric, unit in self._units.items():
                if metric not in kernel.metrics:
                    self._sink.add_count("metrics missing for a kernel")
                    self._add_row(kernel, metric, unit, None)

    def write_rows(self) -> None:
        """Hand over what is left."""
        if self._rows:
            self._sink.add_rows(
                "kernel_metrics", dict(zip(COLUMNS, zip(*self._rows, strict=True), strict=True))
            )
        self._rows = []

    def _add_long(self, listing: Listing) -> None:
        """One row per kernel and metric."""
        self.layouts.add("details" if "Section Name" in listing.names else "long")
        metric_at, value_at = listing.names["Metric Name"], listing.names["Metric Value"]
        unit_at = listing.names.get("Metric Unit")
        cells = []
        for row in listing.rows:
            if len(row) <= value_at:
                listing.bad_rows += 1
                continue
            kernel = self._find_kernel(listing, row)
            if row[metric_at].strip():
                unit = row[unit_at] if unit_at is not None else ""
                cells.append((kernel, row[metric_at], unit, row[value_at]))
            else:
                listing.rule_rows += 1
        self._add_values(cells, find_decimal_mark(text for *_, text in cells))

    def _add_wide(self, listing: Listing) -> None:
        """One row per kernel."""
        # a pivot has one row per kernel, numbered, without a word about the kernel
        self.layouts.add("pivot" if listing.header[0] == "Metric Name" else "wide")
        metrics = [
            (position, name)
            for position, name in enumerate(listing.header)
            if name and name not in _DESCRIPTION and not name.startswith(_RANGE_COLUMNS)
        ]
        units: list[str] = []
        rows: list[tuple[_Kernel, list[str]]] = []
        for row in listing.rows:
            if row[0].strip():
                listing.bad_rows += len(row) < len(listing.header)
                rows.append((self._find_kernel(listing, row), row))
            elif not rows and not units:
                units = row
            else:
                listing.bad_rows += 1

        units += [""] * len(listing.header)
        mark = find_decimal_mark(row[at] for _, row in rows for at, _ in metrics if at < len(row))
        cells = (
            (kernel, name, units[at], row[at])
            for kernel, row in rows
            for at, name in metrics
            if at < len(row)
        )
        self._add_values(cells, mark)

    def _find_kernel(self, listing: Listing, row: list[str]) -> _Kernel:
        process, device, name = (
            row[position].strip() if (position := listing.names.get(column, len(row))) < len(row) else ""
            for column in ("Process ID", "Device", "Kernel Name")
        )
        key = (process, row[0].strip())
        if key not in self._kernels:
            self._kernels[key] = _Kernel(self.kernel_count, _as_number(process), _as_number(device), name)
            self.kernel_count += 1
        return self._kernels[key]

    def _add_values(self, cells: Iterable[tuple[_Kernel, str, str, str]], mark: str) -> None:
        """Kernel, metric, unit and value of cells; what a section repeats of another is passed over."""
        for kernel, name, unit, text in cells:
            metric, base, factor = _resolve_metric(name, unit)
            if metric in kernel.metrics:
                continue
            value = parse_number(text, mark)
            if value is not None:
                self._units.setdefault(metric, base)
                self._add_row(kernel, metric, base, value * factor)
            elif text.strip().lower().removeprefix("(!) ") in _ABSENT:
                continue
            else:
                self._sink.add_count("metrics whose value is a text")
            kernel.metrics.add(metric)

    def _add_row(self, kernel: _Kernel, metric: str, unit: str | None, value: float | None) -> None:
        self._rows.append(
            (kernel.process, kernel.device, kernel.number, kernel.name or None, metric, unit, value)
        )
        if len(self._rows) >= ROWS_AT_ONCE:
            self.write_rows()


@lru_cache(maxsize=4096)
def _resolve_metric(name: str, unit: str) -> tuple[str, str | None, float]:
    """The counter's own name where we know it, else as it is printed; its unit and the factor to it."""
    base, factor = base_unit(unit)
    name = name.strip()
    return _METRICS.get((name, "")) or _METRICS.get((name, base)) or name, base or None, factor


def _as_number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 18 else None


def recognize_head(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """Whether the text has a listing's header, or the tool's own lines before one."""
    if head[:1] in b"{[" or head.startswith(b"SQLite"):
        return False
    text = head.decode(_find_encoding(head), "replace")
    return bool(_LONG.search(text) or _PIVOT.search(text) or _TOOL.search(text))


def read_listings(path: Path, sink: Sink) -> None:
    """Put the metrics of every kernel into the sink."""
    table, reader = KernelTable(sink), ListingReader(path)
    for listing in reader.read_listings():
        if "Invocations" in listing.names and "Average" in listing.names:
            raise InputError(
                f"{path.name} sums kernels up (--print-summary): it does not list them one by one",
                "export again without --print-summary",
            )
        table.add_listing(listing)
        sink.add_count("lines that are no part of a listing", listing.log_lines)
        sink.add_count("rows of rules, without a metric", listing.rule_rows)
        sink.add_damage("rows that are cut or damaged", listing.bad_rows)
    if reader.is_forbidden:
        sink.add_note(f"Nsight Compute reported {PERMISSION}: it was not allowed to read counters")
    table.write_rows()
    if not sink.rows and reader.is_forbidden:
        raise InputError(
            f"{path.name} has no kernel: Nsight Compute was not allowed to read counters ({PERMISSION})",
            "let an administrator set NVreg_RestrictProfilingToAdminUsers=0, or record as root",
        )
    if not sink.rows:
        raise InputError(
            f"{path.name} has no kernel with metrics",
            "export with: ncu --csv --page raw --print-units base -i REPORT.ncu-rep",
        )
    sink.info.update(format="Nsight Compute CSV", kernels=table.kernel_count, layouts=sorted(table.layouts))
    sink.cannot_tell("device use over time: Nsight Compute serialises kernels and lists no times")


PART = Format("Nsight Compute listing", recognize_head, read_listings, order=40)
