"""Every figure of one run that another may have as well: of steps, device, memory and accuracy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from detscope.analyze.compare.change import Places, Sample, sample_median, sample_percentile
from detscope.analyze.compare.series import PerStep, RunSeries, read_series
from detscope.analyze.figure import Clock
from detscope.analyze.findings.census import WAITS
from detscope.analyze.stats import Floats, samples_needed
from detscope.analyze.summary import RunSummary, summarize
from detscope.runs.reader import Run

Samples = dict[str, Sample]


@dataclass(frozen=True)
class RunFigures:
    """What one run has to be compared by."""

    run: Run
    series: RunSeries
    summary: RunSummary
    p50: Sample | None
    p95: Sample | None
    images_per_s: Sample | None
    phases: Samples = field(default_factory=dict)
    stages: Samples = field(default_factory=dict)
    modules: Samples = field(default_factory=dict)
    operators: Samples = field(default_factory=dict)  # ms per step, by name
    kernels: Samples = field(default_factory=dict)  # ms per step, or in all where there are no steps
    device: Samples = field(default_factory=dict)  # shares, and ms per step where the name says so
    memory: Samples = field(default_factory=dict)  # bytes
    accuracy: Samples = field(default_factory=dict)
    census: Samples = field(default_factory=dict)  # counts per step, by kind, waits in all first
    cores_busy: float | None = None  # processor time of the steps over their wall time
    others_share: float | None = None  # of all cores, used by other processes; None where nobody sampled it

    @property
    def step_ms(self) -> float:
        """The median step; 0 where there are none."""
        return self.p50.value if self.p50 else 0.0


def read_figures(run: Run, clock: Clock = "device", summary: RunSummary | None = None) -> RunFigures:
    """All figures of a run; phases, stages and modules on the device's clock where it has one."""
    series, summary = read_series(run, clock), summary or summarize(run)
    return RunFigures(
        run=run,
        series=series,
        summary=summary,
        p50=sample_median(series.step),
        p95=_sample_p95(series.timed),
        images_per_s=_sample_speed(series, summary.images_per_s),
        phases=_sample_medians(series.phases),
        stages=_sample_medians(series.stages),
        modules=_sample_medians(series.modules),
        operators=_sample_operators(run),
        kernels=_sample_kernels(summary),
        device={name: Sample(value) for name, value in _list_device(summary)},
        memory={name: Sample(value) for name, value in _list_memory(summary)},
        accuracy={name: Sample(value) for name, value in _list_accuracy(summary)},
        census={name: Sample(value) for name, value in _list_census(summary)},
        cores_busy=summary.processor.cores_busy if summary.processor else None,
        others_share=read_others(run, summary),
    )


def _list_census(summary: RunSummary) -> Iterator[tuple[str, float]]:
    """Waits in all, and every kind."""
    census = summary.census
    if census is not None:
        yield "waits", census.waits
        yield "launches", census.find_count("launch")
        yield from ((one.kind, one.count) for one in census.counts if one.kind in WAITS)


def read_others(run: Run, summary: RunSummary) -> float | None:
    """What other processes used of all cores, while the run was sampled."""
    means = {(one.source, one.metric): one.mean for one in summary.telemetry}
    system = means.get(("system", "cpu_percent"))
    processor = (run.info.get("environment") or {}).get("cpu") or {}
    cores = float(processor.get("logical_cores") or 0.0)
    if system is None or not cores:
        return None
    own = sum(
        mean or 0.0
        for (source, metric), mean in means.items()
        if metric == "cpu_percent" and (source == "process" or source.startswith("worker:"))
    )
    return max(0.0, system / 100 - own / 100 / cores)


def _sample_medians(named: Mapping[str, PerStep]) -> Samples:
    found = {name: sample_median(times) for name, times in named.items()}
    return {name: sample for name, sample in found.items() if sample is not None}


def _sample_p95(times: PerStep) -> Sample | None:
    """Where the steps are enough for it."""
    return sample_percentile(times, 95) if len(times) >= samples_needed(95) else None


def _sample_speed(series: RunSeries, told: float | None) -> Sample | None:
    """Images over the time of their steps; of a run without steps what its summary tells."""
    if not series.images:
        return None if told is None else Sample(told)
    steps = tuple(sorted(series.images))
    times, images = (np.asarray([named[step] for step in steps]) for named in (series.timed, series.images))

    def measure(places: Places) -> Floats:
        speeds: Floats = 1e3 * images[places].sum(axis=1) / np.maximum(times[places].sum(axis=1), 1e-9)
        return speeds

    # several ranks are faster together than the first alone
    return Sample(told or float(1e3 * images.sum() / max(times.sum(), 1e-9)), steps, measure)


def _sample_operators(run: Run) -> Samples:
    ops = run.table("ops", ("name", "self_ns"))
    window = (run.info.get("operators") or {}).get("steps") or 1
    summed = ops.group_by("name").agg(pl.col("self_ns").sum()).sort("self_ns", "name", descending=True)
    return {name: Sample(self_ns / 1e6 / window) for name, self_ns in summed.iter_rows() if self_ns > 0}


def _sample_kernels(summary: RunSummary) -> Samples:
    """By the short name: template arguments differ between versions of a library."""
    summed: dict[str, float] = defaultdict(float)
    for kernel in summary.device_use.kernels if summary.device_use else ():
        summed[kernel.short] += kernel.ms
    return {name: Sample(value) for name, value in summed.items() if value > 0}


def _list_device(summary: RunSummary) -> Iterator[tuple[str, float]]:
    """Shares of the window, and milliseconds per step on the device's clock."""
    use, clocks = summary.device_use, summary.clocks
    found: dict[str, float | None] = {}
    if use is not None and use.utilisation is not None:
        found |= {"utilisation": use.utilisation.kernels, "copies": use.utilisation.copies}
    if use is not None:
        for name, estimate in (
            ("sm_efficiency", use.sm_efficiency),
            ("occupancy", use.occupancy),
            ("tensor_cores", use.tensor_cores_by_name),
        ):
            found[name] = estimate.value if estimate else None
        found |= {f"idle_{cause.name}": cause.share for cause in (use.idle.causes if use.idle else ())}
        found["communication_exposed"] = use.communication.exposed_share if use.communication else None
        found |= {f"pipe_{pipe.name}": pipe.value for pipe in (use.cores.pipes if use.cores else ())}
    found |= {"busy_ms": clocks.busy_ms, "idle_ms": clocks.idle_ms, "host_waits_ms": clocks.host_waits_ms}
    yield from ((name, value) for name, value in found.items() if value is not None)


def _list_memory(summary: RunSummary) -> Iterator[tuple[str, float]]:
    """The peak of live tensors and its categories; what the process held, where that was sampled."""
    memory, alone = summary.memory, summary.pass_memory
    if memory is not None:
        yield "peak", memory.peak_bytes
        for one in memory.categories:
            yield one.name, one.bytes
    elif alone is not None and alone.peak_bytes is not None:
        yield "peak", alone.peak_bytes
    for sampled in summary.telemetry:
        if (sampled.source, sampled.metric) == ("process", "rss_bytes") and sampled.max is not None:
            yield "process", sampled.max


def _list_accuracy(summary: RunSummary) -> Iterator[tuple[str, float]]:
    """Figures of boxes by COCO's names; those of masks and others with their kind before them."""
    accuracy = summary.accuracy
    if accuracy is None:
        return
    seen = {"AP": accuracy.ap, "AP50": accuracy.ap50}
    for kind in ("coco_box", "coco_mask", "coco_keypoints", "voc07", "voc10"):
        figures = getattr(accuracy, kind)
        if figures is None:
            continue
        names = zip(figures.__struct_encode_fields__, figures.__struct_fields__, strict=True)
        prefix = "" if kind == "coco_box" else f"{kind}."
        seen |= {f"{prefix}{encoded}": getattr(figures, name) for encoded, name in names}
    yield from ((name, value) for name, value in seen.items() if value is not None)
