"""A scan of inferences: one row per batch size, number of threads and precision."""

from __future__ import annotations

from detscope.analyze.figure import Figure
from detscope.analyze.stats import Interval
from detscope.analyze.summary import RunSummary


class ScanRow(Figure, frozen=True, kw_only=True):
    """One combination: the run that came out and its figures, or why there is none."""

    batch_size: int  # images per pass
    threads: int | None  # of the processor; None: torch decides
    precision: str  # fp32, bf16, fp16
    latency_ms: float | None = None  # of a pass: the median
    ci95: Interval | None = None  # 95 % interval of the median
    p95_ms: float | None = None  # of a pass; only where the passes support it
    image_ms: float | None = None  # the median pass over its images
    images_per_s: float | None = None  # of all measured passes
    peak_bytes: int | None = None  # of allocated memory in a pass
    n: int = 0  # measured passes
    stability: str | None = None  # stable, unstable, too few
    run: str | None = None  # its folder
    why: str | None = None  # why there is no run


class InferenceScan(Figure, frozen=True, kw_only=True):
    """What was measured, and which combination is best at what."""

    model: str  # its name
    device: str | None  # that it ran on
    images: int | None  # measured in each run
    rows: tuple[ScanRow, ...]
    fastest: int | None = None  # number of the row with most images/s, from 0
    quickest: int | None = None  # number of the row whose pass is shortest


def scan_row(batch_size: int, threads: int | None, precision: str, found: RunSummary) -> ScanRow:
    """Of a run's figures what a scan compares."""
    step, told = found.step_ms, found.memory or found.pass_memory
    return ScanRow(
        batch_size=batch_size,
        threads=threads,
        precision=precision,
        latency_ms=step.p50,
        ci95=step.ci95,
        p95_ms=step.p95,
        image_ms=step.p50 / batch_size if step.p50 is not None else None,
        images_per_s=found.images_per_s,
        peak_bytes=int(told.peak_bytes) if told is not None and told.peak_bytes is not None else None,
        n=step.n,
        stability=found.stability.verdict,
        run=found.run,
    )


def make_scan(model: str, device: str | None, images: int | None, rows: list[ScanRow]) -> InferenceScan:
    """Rows in the order they were asked for, with the best of them."""
    speeds = {number: row.images_per_s for number, row in enumerate(rows) if row.images_per_s is not None}
    times = {number: row.latency_ms for number, row in enumerate(rows) if row.latency_ms is not None}
    return InferenceScan(
        model=model,
        device=device,
        images=images,
        rows=tuple(rows),
        fastest=max(speeds, key=lambda number: speeds[number]) if speeds else None,
        quickest=min(times, key=lambda number: times[number]) if times else None,
    )
