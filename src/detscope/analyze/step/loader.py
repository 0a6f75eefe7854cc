"""The data pipeline: what each worker does, what it could deliver, and how long the loop waited."""

from __future__ import annotations

import polars as pl

from detscope.analyze.figure import Figure
from detscope.analyze.step.columns import highest, lowest, mean, total
from detscope.analyze.step.steps import TypicalSteps


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


class TransformFigures(Figure, frozen=True, kw_only=True):
    """What is done to images under one name: a transform, decoding, collating, or a function seen by a timer."""

    name: str  # of its class, or of the function; numbered where a pipeline has several
    kind: str  # transform, decode, region, collate, sampled (by a timer), rest (has no name)
    origin: str | None = None  # its class with its module; of sampled ones file:line
    inside: str | None = None  # the transform that it is a part of
    where: str = "worker"  # worker, loop (loads by itself), batch (whole batches, in the loop), device
    ms_per_image: float  # without its parts
    total_ms_per_image: float | None = None  # with its parts
    share: float | None = None  # of the worker's time, without its parts; of the step's for whole batches
    calls_per_image: float | None = None  # None: seen by a timer
    applied_per_image: float | None = None  # calls after which the image was another; None: not to be seen
    looks: int | None = None  # of the timer, that the figure rests on


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
) -> LoaderFigures:
    """Workers, capacity and demand.

    `num_workers` is what the loader says; without it those count that made a batch of the measured steps.
    """
    busy_ms = (typical.p50_ms or 0.0) - wait_ms
    demand = images_per_step / busy_ms * 1e3 if images_per_step and busy_ms > 0 else None
    chosen = loader.filter(pl.col("step").is_in(typical.measured))
    batches = chosen.filter(pl.col("region") == "batch")
    if batches.height == 0:
        why = "the loader's workers could not be measured (not a map-style DataLoader)"
        return LoaderFigures(wait_ms=wait_ms, demand_images_per_s=demand, why=why)
    window_ns = highest(batches["start_ns"] + batches["wall_ns"]) - lowest(batches["start_ns"])
    numbers = sorted(batches["worker"].unique().to_list())
    workers = tuple(_worker_figures(number, chosen, batches, window_ns) for number in numbers)
    if num_workers is None:
        num_workers = sum(worker.worker >= 0 for worker in workers)
    making_s = total(batches["wall_ns"]) / 1e9
    images = total(batches["images"]) * max(1, num_workers)
    sent = batches.filter(pl.col("step").is_in(typical.steps)).drop_nulls("receive_ns")
    waited = total(sent["wait_ns"])  # 0 where nobody sent batches, or it was not kept
    made_before = sent.filter(pl.col("receive_ns") >= pl.col("wait_ns"))
    return LoaderFigures(
        wait_ms=wait_ms,
        demand_images_per_s=demand,
        capacity_images_per_s=images / making_s if making_s else None,
        num_workers=num_workers,
        workers=workers,
        receive_ms=wait_ms * total(sent["receive_ns"]) / waited if waited else None,
        ready_share=made_before.height / sent.height if waited else None,
        tensors_per_batch=mean(sent["tensors"]) if waited else None,
    )


def _worker_figures(
    number: int, chosen: pl.DataFrame, batches: pl.DataFrame, window_ns: int
) -> WorkerFigures:
    own = batches.filter(pl.col("worker") == number)
    parts = chosen.filter(pl.col("worker") == number)

    def per_batch_ms(region: str) -> float:
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
