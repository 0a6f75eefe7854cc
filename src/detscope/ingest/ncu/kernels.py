"""Rows of `kernel_metrics` out of the rows of listings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from detscope.ingest.ncu.listings import Listing
from detscope.ingest.ncu.numbers import base_unit, find_decimal_mark, parse_number
from detscope.ingest.sink import Sink

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
        self.layouts.add("pivot" if listing.is_pivot else "wide")
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
