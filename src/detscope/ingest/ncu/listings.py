"""From bytes to the rows of listings: encodings, log lines anywhere, cells that hold line breaks."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from detscope.errors import InputError
from detscope.ingest.files import RecordedFile
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

    @property
    def is_pivot(self) -> bool:
        """One row per kernel, numbered, without a word about the kernel."""
        return self.header[0] == "Metric Name" and not self.is_long

    @property
    def is_summary(self) -> bool:
        """Rows about all kernels of a name together."""
        return "Invocations" in self.names and "Average" in self.names


def decode_head(head: bytes) -> str:
    """The beginning of a file as text."""
    return head.decode(_find_encoding(head), "replace")


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
