"""From bytes to the rows of listings: encodings, log lines anywhere, cells that hold line breaks."""

from __future__ import annotations

import codecs
import csv
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from detscope.errors import InputError
from detscope.ingest.files import most_unpacked_bytes, open_unpacked
from detscope.limits import limit, over_limit

MAX_LINES_OF_A_ROW = 50
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_DELIMITERS = (",", ";", "\t")


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
    def long(self) -> bool:
        """One row per kernel and metric."""
        return "Metric Name" in self.names and "Metric Value" in self.names

    @property
    def pivot(self) -> bool:
        """One row per kernel, numbered, without a word about the kernel."""
        return self.header[0] == "Metric Name" and not self.long

    @property
    def summary(self) -> bool:
        """Rows about all kernels of a name together."""
        return "Invocations" in self.names and "Average" in self.names


def encoding_of(head: bytes) -> str:
    """By byte order mark; without one, text full of zero bytes is UTF-16."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    sample = head[:400]
    if sample.count(0) > len(sample) // 4:
        return "utf-16-le" if sample[1::2].count(0) >= sample[::2].count(0) else "utf-16-be"
    return "utf-8"


def decode(head: bytes) -> str:
    """The beginning of a file as text."""
    return head.decode(encoding_of(head), "replace")


@contextmanager
def open_text(path: Path) -> Iterator[Iterator[str]]:
    """The lines of a file, packed or not, in whatever encoding."""
    with open_unpacked(path) as file:
        try:
            encoding = encoding_of(file.read(4096))
            file.seek(0)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{path.name} cannot be unpacked: {error}", "copy the file again") from error
        yield _lines(file, encoding, path)


def _lines(file: IO[bytes], encoding: str, path: Path) -> Iterator[str]:
    """Lines without their ends; a line without end is cut into pieces, so that memory stays bounded."""
    most, longest = most_unpacked_bytes(path), limit("listing_line_bytes")
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    rest, ended = "", False
    while not ended:
        try:
            piece = file.read(1 << 18)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            piece = b""  # packed and cut: what came until here counts
        ended = not piece
        if file.tell() > most:
            raise over_limit("recording_ratio", path.name)
        *whole, rest = (rest + decoder.decode(piece, ended)).split("\n")
        for line in whole:
            yield line.rstrip("\r")
        if len(rest) > longest:
            yield rest
            rest = ""
    if rest:
        yield rest


def listings(lines: Iterator[str]) -> Iterator[Listing]:
    """Every listing of a file, one after the other; its rows must be read before the next is asked for."""
    source = _Source(lines)
    skipped = 0
    while (line := source.next()) is not None:
        header = header_of(line)
        if header is None:
            skipped += 1
            continue
        listing = Listing(header[0], iter(()), log_lines=skipped)
        listing.rows = _rows(source, listing, header[1])
        yield listing
        skipped = 0


class _Source:
    """Lines, one of which can be put back."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._again: list[str] = []

    def next(self) -> str | None:
        return self._again.pop() if self._again else next(self._lines, None)

    def put_back(self, line: str) -> None:
        self._again.append(line)


def header_of(line: str) -> tuple[list[str], str] | None:
    """The columns and the delimiter of a header, also where a program's last words stand right before it."""
    if len(line) > limit("listing_line_bytes") or ("Metric Name" not in line and "Kernel Name" not in line):
        return None
    at = max(line.find('"ID"'), 0)
    for delimiter in _DELIMITERS:
        cells = _cells(line[at:], delimiter)
        if cells and len(cells) > 2:
            names = [cell.strip().lstrip("\ufeff") for cell in cells]
            if names[0] == "ID" and "Kernel Name" in names:
                return names, delimiter
            if names[0] == "Metric Name" and any("__" in name for name in names):
                return names, delimiter
            if "Kernel Name" in names and "Invocations" in names:
                return names, delimiter
    return None


def _rows(source: _Source, listing: Listing, delimiter: str) -> Iterator[list[str]]:
    """Rows with an id, and the row of units whose id is empty."""
    while (line := source.next()) is not None:
        if ("Metric Name" in line or "Kernel Name" in line) and header_of(line) is not None:
            source.put_back(line)
            return
        start = line.lstrip()[:1]
        if not (start == '"' or start.isdigit() or start == delimiter):
            listing.log_lines += bool(line.strip())
            continue
        cells = _whole_row(line, source, delimiter)
        if cells is None:
            listing.bad_rows += 1
        elif cells[0].strip().isdigit() or (cells[0].strip() == "" and len(cells) > 2):
            yield cells
        else:
            listing.log_lines += 1


def _whole_row(line: str, source: _Source, delimiter: str) -> list[str] | None:
    """A row whose last cell may go on over several lines; None if it never ends."""
    taken: list[str] = []
    whole = line
    while whole.count('"') % 2:
        more = source.next()
        if more is None or len(taken) >= MAX_LINES_OF_A_ROW or _begins_row(more):
            for text in reversed(taken if more is None else [*taken, more]):
                source.put_back(text)
            return None
        taken.append(more)
        whole += "\n" + more
    return _cells(whole, delimiter)


def _begins_row(line: str) -> bool:
    """`"12","345",...`: a new row begins, so the one before was cut."""
    cells = line.split('","', 2)
    return len(cells) > 2 and cells[0].startswith('"') and cells[0][1:].isdigit() and cells[1].isdigit()


def _cells(line: str, delimiter: str) -> list[str] | None:
    try:
        return next(csv.reader([line], delimiter=delimiter), None)
    except csv.Error:
        return None
