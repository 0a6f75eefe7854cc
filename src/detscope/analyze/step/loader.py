"""The data pipeline: what each worker does, what it could deliver, and how long the loop waited."""

from __future__ import annotations

import math

import polars as pl

from detscope.analyze.figure import Figure
from detscope.analyze.step.columns import highest, lowest, mean, total
from detscope.analyze.step.steps import TypicalSteps
from detscope.analyze.step.transforms import TransformFigures, mean_region_ms, transform_figures


class WorkerFigures(Figure, frozen=True, kw_only=True):
    """A loader's worker, per batch it made; times are taken inside the worker."""

    worker: int  # -1 is the loop itself
    batches: int  # that it made
    load_ms: float  # reading files
    decode_ms: float  # to pixels
    transform_ms: float  # resizing, flipping, ...
    collate_ms: float  # into a batch
    batch_ms: float  # all of it
    busy_share: float | None  # of the time from the first batch to the last
    wait_ms: float  # the loop waited for its batches


class LoaderFigures(Figure, frozen=True, kw_only=True):
    """What the loop waited for, and whether workers keep up."""

    wait_ms: float  # per step; on a device's clock, that the device stood idle meanwhile
    host_wait_ms: float | None = None  # of the host alone, where wait_ms is the device's
    demand_images_per_s: float | None  # what the loop would take if it never waited
    capacity_images_per_s: float | None = None  # what workers make if they never wait
    num_workers: int | None = None  # 0: the loop loads by itself
    workers: tuple[WorkerFigures, ...] = ()
    receive_ms: float | None = None  # of the waiting: after a batch had been made
    ready_share: float | None = None  # of batches: made before they were asked for
    tensors_per_batch: float | None = None  # that travel from a worker
    transforms: tuple[TransformFigures, ...] = ()  # most time first, over all workers
    named_share: float | None = None  # of the workers' time: in `transforms` by name
    worker_ms_per_image: float | None = None  # of one worker
    workers_needed: int | None = None  # for the loop to wait for none
    why: str | None = None  # why workers are not known

    @property
    def dearest(self) -> TransformFigures | None:
        """What a worker spends most of its time on and could do less of; decoding and collating must be."""
        able = (one for one in self.transforms if one.kind in ("transform", "sampled", "dataset"))
        return next((one for one in able if one.share is not None), None)

    @property
    def lies_ready(self) -> bool:
        """Whether most batches were made before they were asked for, so that waiting is receiving."""
        if not self.wait_ms or self.receive_ms is None or (self.ready_share or 0.0) < 0.5:
            return False
        return self.receive_ms >= self.wait_ms / 2


def loader_figures(
    loader: pl.DataFrame,
    typical: TypicalSteps,
    images_per_step: float | None,
    wait_ms: float,
    num_workers: int | None = None,
    transforms: pl.DataFrame | None = None,
) -> LoaderFigures:
    """Workers, capacity and demand.

    `num_workers` is what the loader says; without it those count that made a batch of the measured steps.
    """
    chosen = loader.filter(pl.col("step").is_in(typical.measured))
    batches = chosen.filter(pl.col("region") == "batch")
    if images_per_step is None and batches.height:  # not to be seen in a batch, but known by its maker
        images_per_step = total(batches["images"]) / batches["step"].n_unique()
    busy_ms = (typical.p50_ms or 0.0) - wait_ms
    demand = images_per_step / busy_ms * 1e3 if images_per_step and busy_ms > 0 else None
    if batches.height == 0:
        why = "the loader's workers could not be measured (not a map-style DataLoader)"
        return LoaderFigures(wait_ms=wait_ms, demand_images_per_s=demand, why=why)
    window_ns = highest(batches["start_ns"] + batches["wall_ns"]) - lowest(batches["start_ns"])
    numbers = sorted(batches["worker"].unique().to_list())
    done = None if transforms is None else transforms.filter(pl.col("step").is_in(typical.measured))
    workers = tuple(_worker_figures(number, chosen, batches, window_ns, done) for number in numbers)
    if num_workers is None:
        num_workers = sum(worker.worker >= 0 for worker in workers)
    making_s = total(batches["wall_ns"]) / 1e9
    made = total(batches["images"])
    images = made * max(1, num_workers)
    each_ms = making_s / made * 1e3 if made else None
    named = transform_figures(done)
    sent = batches.filter(pl.col("step").is_in(typical.steps)).drop_nulls("receive_ns")
    waited = total(sent["wait_ns"])  # 0 where nobody sent batches, or it was not kept
    made_before = sent.filter(pl.col("receive_ns") >= pl.col("wait_ns"))
    return LoaderFigures(
        wait_ms=wait_ms,
        demand_images_per_s=demand,
        capacity_images_per_s=images / making_s if making_s else None,
        num_workers=num_workers,
        workers=workers,
        transforms=named,
        named_share=None if not named else 1 - sum(one.share or 0.0 for one in named if one.kind == "rest"),
        worker_ms_per_image=each_ms,
        workers_needed=None if not (demand and each_ms) else max(1, math.ceil(demand * each_ms / 1e3)),
        receive_ms=wait_ms * total(sent["receive_ns"]) / waited if waited else None,
        ready_share=made_before.height / sent.height if waited else None,
        tensors_per_batch=mean(sent["tensors"]) if waited else None,
    )


def _worker_figures(
    number: int, chosen: pl.DataFrame, batches: pl.DataFrame, window_ns: int, done: pl.DataFrame | None
) -> WorkerFigures:
    own = batches.filter(pl.col("worker") == number)
    parts = chosen.filter(pl.col("worker") == number)

    by_kind = {} if done is None else mean_region_ms(done.filter(pl.col("worker") == number))

    def per_batch_ms(region: str) -> float:
        if by_kind:
            return by_kind.get(region, 0.0)
        return total(parts.filter(pl.col("region") == region)["wall_ns"]) / 1e6 / own.height

    return WorkerFigures(
        worker=number,
        batches=own.height,
        load_ms=per_batch_ms("load"),
        decode_ms=per_batch_ms("decode"),
        transform_ms=per_batch_ms("transform"),
        collate_ms=per_batch_ms("collate"),
        batch_ms=total(own["wall_ns"]) / 1e6 / own.height,
        busy_share=min(1.0, total(own["wall_ns"]) / window_ns) if window_ns else None,
        wait_ms=total(own["wait_ns"]) / 1e6 / own.height,
    )
