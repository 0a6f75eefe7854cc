"""What a worker does to an image, by name: transforms, decoding, collating, and what a timer saw."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import polars as pl

from detscope.analyze.figure import Figure
from detscope.analyze.step.columns import total

_LOADING = ("worker", "loop")
LEAST_LOOKS = 3  # of a timer, before time is given to what it saw
_REST = "(without a name)"
_WEIGHT = pl.col("stands_for").fill_null(1)


class TransformFigures(Figure, frozen=True, kw_only=True):
    """What is done to images under one name: a transform, a decoder, or a function that a timer saw."""

    name: str  # of its class, or of the function; numbered where a pipeline has several
    kind: str  # transform, dataset (its own code), decode, region, collate, sampled (by a timer), rest
    origin: str | None = None  # its class with its module; of functions file:line
    inside: str | None = None  # the transform that it is a part of
    where: str = "worker"  # worker, loop (loads by itself), batch (whole batches, in the loop), device
    ms_per_image: float  # without its parts; on a device, of the host
    total_ms_per_image: float | None = None  # with its parts
    share: float | None = None  # of the worker's time, without its parts; None for whole batches
    calls_per_image: float | None = None  # None: seen by a timer
    applied_per_image: float | None = None  # calls after which the image was another; None: not to be seen
    looks: int | None = None  # of the timer, that the figure rests on
    position: int | None = None  # among what is done to an image, in the order of its pipeline
    images_timed: int | None = None  # that the figure rests on: drawn from all, so that timing costs little


class _Sum:
    """What rows of one name add up to, over all batches that those which were timed stand for."""

    def __init__(self) -> None:
        self.own_ns = 0.0
        self.total_ns = self.calls = self.applied = self.position = 0
        self.origin: str | None = None


class _Place:
    """All that was done in workers, or in the loop."""

    def __init__(self, where: str, rows: pl.DataFrame) -> None:
        self.where = where
        batches = rows.filter(pl.col("kind") == "batch").with_columns(stands_for=_WEIGHT)
        self.timed = int(total(batches["images"]))
        self.images = total(batches["images"] * batches["stands_for"])
        self.spent_ns = total(batches["own_ns"] * batches["stands_for"])
        self.sums: dict[tuple[str, str, str | None], _Sum] = defaultdict(_Sum)
        self.looks: dict[str | None, Counter[tuple[str, str]]] = defaultdict(Counter)
        before: Counter[tuple[int, int]] = Counter()  # a batch's parts are written in their order
        for row in rows.filter(pl.col("kind") != "batch").iter_rows(named=True):
            if row["kind"] == "sampled":
                self.looks[row["inside"]][row["name"], row["origin"]] += row["looks"]
                continue
            sums = self.sums[row["name"], row["kind"], row["inside"]]
            before[row["step"], row["worker"]] += 1
            sums.position = max(sums.position, before[row["step"], row["worker"]])
            times = row["stands_for"] or 1
            sums.own_ns += row["own_ns"] * times
            sums.total_ns += row["total_ns"] * times
            sums.calls += row["calls"] * times
            sums.applied += row["applied"] * times
            sums.origin = sums.origin or row["origin"]

    def describe(self, name: str, kind: str, own_ns: float, **more: Any) -> TransformFigures:
        """A figure, per image."""
        return TransformFigures(
            name=name,
            kind=kind,
            where=self.where,
            images_timed=self.timed,
            ms_per_image=own_ns / 1e6 / self.images,
            share=own_ns / self.spent_ns if self.spent_ns and self.where in _LOADING else None,
            **more,
        )

    def list_figures(self) -> Iterator[TransformFigures]:
        """Everything that has a name, and what has none."""
        rest_ns = self.spent_ns - sum(one.own_ns for one in self.sums.values())
        left_ns, sampled = self._share_looks(None, max(0.0, rest_ns))
        yield from sampled
        if left_ns > 0:
            yield self.describe(_REST, "rest", left_ns)
        for (name, kind, inside), sums in self.sums.items():
            own_ns, sampled = self._share_looks(name, sums.own_ns)
            yield from sampled
            yield self.describe(
                name,
                kind,
                own_ns,
                origin=sums.origin,
                inside=inside,
                position=sums.position,
                total_ms_per_image=sums.total_ns / 1e6 / self.images,
                calls_per_image=sums.calls / self.images,
                applied_per_image=sums.applied / self.images if sums.applied else None,
            )

    def _share_looks(self, inside: str | None, whole_ns: float) -> tuple[float, list[TransformFigures]]:
        """Time of functions that were seen in a part, and what of it is left to the part itself."""
        seen = self.looks.get(inside, Counter())
        if seen.total() < LEAST_LOOKS:
            return whole_ns, []
        functions: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for (name, line), times in seen.items():
            functions[name, line.rpartition(":")[0]][line] += times
        figures, left_ns = [], whole_ns
        for (name, _), lines in functions.items():
            if inside is not None and f"{name}.".startswith(f"{inside.split(' ')[0].split('(')[0]}."):
                continue  # the part's own method
            own_ns = whole_ns * lines.total() / seen.total()
            left_ns -= own_ns
            ((line, _times),) = lines.most_common(1)
            figures.append(
                self.describe(name, "sampled", own_ns, origin=line, inside=inside, looks=lines.total())
            )
        return max(0.0, left_ns) if left_ns > 1 else 0.0, figures


def transform_figures(rows: pl.DataFrame | None) -> tuple[TransformFigures, ...]:
    """All work by name, most time first; `rows` are those of the steps that count."""
    if rows is None:
        return ()
    places = (_Place(where, rows.filter(pl.col("where") == where)) for where in rows["where"].unique())
    found = [one for place in places if place.images for one in place.list_figures()]
    return tuple(sorted(found, key=lambda one: (-one.ms_per_image, one.name)))


def mean_region_ms(rows: pl.DataFrame) -> dict[str, float]:
    """Milliseconds per batch of a worker to load, decode, transform and collate; empty if none is known."""
    if not rows["kind"].is_in(["transform", "decode"]).any():
        return {}
    spent: Counter[str] = Counter()
    named = pl.when(pl.col("kind") == "region").then("name").otherwise("kind")
    sums = rows.group_by(named.alias("group")).agg((pl.col("own_ns") * _WEIGHT).sum())
    for name, own_ns in sums.iter_rows():
        spent[name] += own_ns or 0
    whole, _ = spent.pop("batch", 0), spent.pop("dataset", 0)
    spent["load"] += max(0, whole - spent.total())
    batches = total(rows.filter(pl.col("kind") == "batch").select(_WEIGHT)["stands_for"])
    return {name: own_ns / 1e6 / max(1, batches) for name, own_ns in spent.items()}
