"""Rows of `kernel_metrics` out of the rows of listings."""

from __future__ import annotations

from collections.abc import Iterator

from detscope.ingest.ncu.listings import Listing
from detscope.ingest.ncu.names import metric_name
from detscope.ingest.ncu.numbers import base_unit, decimal_mark, parse_number
from detscope.ingest.sink import Sink

ROWS_AT_ONCE = 100_000
# columns that say which kernel it is; all others of a wide listing are metrics
_DESCRIPTION = {
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream",
    "Block Size", "Grid Size", "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value",
    "Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup",
}  # fmt: skip
_RANGE_COLUMNS = ("Thread Domain", "Id:Domain", "<default domain>")
_ABSENT = {"", "n/a", "nan", "no data", "-", "none", "inf", "-inf"}
Key = tuple[int, str, str]  # listing, process, id


class KernelTable:
    """Collects kernels in the order of the file; rows leave in pieces of bounded size per listing."""

    def __init__(self, sink: Sink) -> None:
        self.layouts: set[str] = set()
        self._sink = sink
        self._numbers: dict[Key, int] = {}
        self._listing = 0
        self._metrics: dict[str, str | None] = {}  # all metrics of the listing, with their unit
        self._seen: dict[int, tuple[int | None, int | None, str, set[str]]] = {}
        self._columns: dict[str, list[object]] = {}
        self._clear()

    @property
    def kernels(self) -> int:
        """How many so far."""
        return len(self._numbers)

    def add(self, listing: Listing) -> None:
        """Take all rows of a listing."""
        self._listing += 1
        self._metrics, self._seen = {}, {}
        if listing.long:
            self._add_long(listing)
        else:
            self._add_wide(listing)
        self._fill_missing()

    def finish(self) -> None:
        """Hand over what is left."""
        if self._columns["metric"]:
            self._sink.add("kernel_metrics", self._columns)
        self._clear()

    def _clear(self) -> None:
        names = ("process", "device", "kernel", "name", "metric", "unit", "value")
        self._columns = {name: [] for name in names}

    # ---- one row per kernel and metric

    def _add_long(self, listing: Listing) -> None:
        self.layouts.add("details" if "Section Name" in listing.names else "long")
        columns = listing.names
        metric_at, value_at = columns["Metric Name"], columns["Metric Value"]
        unit_at = columns.get("Metric Unit")
        pending: list[tuple[int, str, str, str]] = []
        for row in listing.rows:
            if len(row) <= value_at:
                listing.bad_rows += 1
                continue
            kernel = self._kernel(listing, row)
            if not row[metric_at].strip():
                listing.rule_rows += 1
                continue
            pending.append(
                (kernel, row[metric_at], row[unit_at] if unit_at is not None else "", row[value_at])
            )
        mark = decimal_mark(value for *_, value in pending)
        for kernel, name, unit, value in pending:
            self._put(kernel, name, unit, value, mark)

    # ---- one row per kernel

    def _add_wide(self, listing: Listing) -> None:
        self.layouts.add("pivot" if listing.pivot else "wide")
        metrics = [
            (position, name)
            for position, name in enumerate(listing.header)
            if name and name not in _DESCRIPTION and not name.startswith(_RANGE_COLUMNS)
        ]
        units: dict[int, str] = {}
        pending: list[tuple[int, list[str]]] = []
        for row in listing.rows:
            if not row[0].strip():
                if not pending and not units:
                    units = {position: text.strip() for position, text in enumerate(row)}
                else:
                    listing.bad_rows += 1
                continue
            if len(row) < len(listing.header):
                listing.bad_rows += 1
            pending.append((self._kernel(listing, row), row))
        mark = decimal_mark(_cells_of(pending, metrics))
        for kernel, row in pending:
            for position, name in metrics:
                if position < len(row):
                    self._put(kernel, name, units.get(position, ""), row[position], mark)

    # ---- kernels and values

    def _kernel(self, listing: Listing, row: list[str]) -> int:
        """The kernel's number over the whole file; its description is kept when it is first seen."""

        def cell(column: str) -> str:
            position = listing.names.get(column)
            return row[position].strip() if position is not None and position < len(row) else ""

        key = (self._listing, cell("Process ID"), row[0].strip())
        number = self._numbers.setdefault(key, len(self._numbers))
        if number not in self._seen:
            self._seen[number] = (
                _whole(cell("Process ID")),
                _whole(cell("Device")),
                cell("Kernel Name"),
                set(),
            )
        return number

    def _put(self, kernel: int, name: str, unit: str, text: str, mark: str) -> None:
        base, factor = base_unit(unit)
        metric = metric_name(name, base)
        seen = self._seen[kernel][3]
        if metric in seen:
            return  # sections repeat what another section says
        value = parse_number(text, mark)
        if value is None:
            if text.strip().lower().removeprefix("(!) ") not in _ABSENT:
                self._sink.count("metrics whose value is a text")
                seen.add(metric)
                return
            return
        seen.add(metric)
        self._metrics.setdefault(metric, base or None)
        self._row(kernel, metric, base or None, value * factor)

    def _fill_missing(self) -> None:
        """A metric that other kernels have and this one has not is a row without value, and counted."""
        for kernel, (_, _, _, seen) in self._seen.items():
            for metric, unit in self._metrics.items():
                if metric not in seen:
                    self._sink.count("metrics missing for a kernel")
                    self._row(kernel, metric, unit, None)

    def _row(self, kernel: int, metric: str, unit: str | None, value: float | None) -> None:
        process, device, name, _ = self._seen[kernel]
        values = (process, device, kernel, name or None, metric, unit, value)
        for column, item in zip(self._columns.values(), values, strict=True):
            column.append(item)
        if len(self._columns["metric"]) >= ROWS_AT_ONCE:
            self.finish()


def _cells_of(rows: list[tuple[int, list[str]]], metrics: list[tuple[int, str]]) -> Iterator[str]:
    for _, row in rows:
        for position, _ in metrics:
            if position < len(row):
                yield row[position]


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 18 else None
