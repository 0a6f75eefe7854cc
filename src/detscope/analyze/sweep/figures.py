"""Figures of a sweep: its rows, curves over the batch size, where it stops to pay, speed against size."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import log2
from statistics import median

import msgspec

from detscope.analyze.figure import Figure
from detscope.runs.standard_json import Json

SWEEP_SCHEMA = 2  # a change that breaks readers raises it
PAYS = 0.05  # gain of images/s per doubling of the batch below which it does not pay
FAILED_ONES = ("oom_host", "oom_device", "timeout", "crashed", "exited", "error")
_AXES = (
    "stage", "device", "batch_size", "image_pixels", "precision", "optimizer", "torch_threads",
    "num_workers", "channels_last", "seed", "repetition",
)  # fmt: skip
_MOST_VALUES = 12


class SweepConditions(Figure, frozen=True, kw_only=True):
    """What all points of a curve have in common."""

    network: str  # as the plan names it
    stage: str  # training or inference
    device: str  # where it ran
    precision: str | None = None  # fp32, bf16, ...
    image_size: int | None = None  # as asked for; None: the network's own
    num_workers: int | None = None  # of the loader
    threads: int | None = None  # as asked for
    environment: str | None = None  # key of the facts about machine and packages


class SweepRow(SweepConditions, frozen=True, kw_only=True):
    """The result of one trial; what was not measured is None."""

    name: str = ""  # of the network, without its folders
    batch_size: int  # images per step
    kind: str  # ok, oom_host, oom_device, timeout, crashed, exited, error, skipped
    status: str  # the same with signal, code, exception or reason
    message: str | None = None  # its last words
    step_ms: float | None = None  # median
    step_low_ms: float | None = None  # its 95 % interval
    step_high_ms: float | None = None  # upper end of its 95 % interval
    forward_ms: float | None = None  # median of the forward pass
    backward_ms: float | None = None  # median of the backward pass
    images_per_s: float | None = None  # throughput
    interval_width: float | None = None  # of the 95 % interval, over the median
    interval_reached: int | None = None  # 0: a limit came before it was narrow enough
    stopped_by: str | None = None  # interval, steps or time: why measuring ended
    stability: str | None = None  # whether the steps kept their pace
    allocated_bytes: int | None = None  # highest sum of live tensors
    reserved_bytes: int | None = None  # by CUDA's allocator
    process_bytes: int | None = None  # resident peak
    parameters: int | None = None  # of the network
    repetition: int = 0  # of the same configuration, from 0
    attempt: int | None = None  # from 1
    seconds: float | None = None  # of the whole trial
    ended_at: str | None = None  # UTC
    optimizer: str | None = None  # sgd or adam
    image_pixels: int | None = None  # side of the images that were fed
    torch_threads: int | None = None  # that torch used
    channels_last: int | None = None  # 1: memory format of images
    seed: int | None = None  # of weights and choices

    @property
    def is_unstable(self) -> bool:
        """Measured, but the interval stayed wider than asked for, or the steps went on changing."""
        if self.kind != "ok" or self.step_ms is None:
            return False
        return self.interval_reached == 0 or (self.stability or "stable") != "stable"


class SweepPoint(Figure, frozen=True, kw_only=True):
    """One batch size of a curve: the median of its repetitions."""

    batch_size: int  # images per step
    repetitions: int  # how many were measured
    step_ms: float | None  # median step
    step_low_ms: float | None  # lower end of its 95 % interval
    step_high_ms: float | None  # upper end of its 95 % interval
    images_per_s: float | None  # throughput
    allocated_bytes: float | None  # highest sum of live tensors
    process_bytes: float | None  # resident peak
    unstable: bool  # whether its latency is to be read with care


class SweepGroup(SweepConditions, frozen=True, kw_only=True):
    """A curve: one network under the same conditions at several batch sizes."""

    name: str  # of the network, with the conditions that differ between curves
    parameters: int | None  # of the network
    points: list[SweepPoint]  # by batch size
    best_batch: int | None  # the batch with most images/s
    best_images_per_s: float | None  # the highest throughput
    stops_to_pay_at: int | None  # None: the largest batch still pays


class ParetoPoint(Figure, frozen=True, kw_only=True):
    """Speed and size of a network."""

    name: str  # what it is called
    network: str  # as it was named
    stage: str  # training or inference
    parameters: int  # of the network
    images_per_s: float  # its best
    front: bool  # whether no network is both faster and larger


class SweepNetwork(Figure, frozen=True, kw_only=True):
    """What became of a network's trials."""

    name: str  # what it is called
    network: str  # as it was named
    parameters: int | None  # of the network
    measured: int  # how many gave figures
    failed: int  # how many failed
    skipped: int  # how many were not tried
    largest_batch: int | None  # that was measured
    best_images_per_s: float | None  # the highest throughput


class SweepAxis(Figure, frozen=True, kw_only=True):
    """What was varied or the same, in words."""

    name: str  # what it is called
    values: str  # in words


class EndingCount(Figure, frozen=True, kw_only=True):
    """How many trials ended so."""

    name: str  # what it is called
    trials: int  # how many


class EnvironmentFact(Figure, frozen=True, kw_only=True):
    """A fact about machine or packages."""

    name: str  # dotted
    text: str  # its value in words


class SweepEnvironment(Figure, frozen=True, kw_only=True):
    """Where trials ran."""

    rows: int  # results
    facts: list[EnvironmentFact]  # about machine and packages


class SweepPlanName(Figure, frozen=True, kw_only=True):
    """A plan that was run into the store."""

    name: str | None = None  # what it is called
    made_at: str | None = None  # UTC


class TrialCounts(Figure, frozen=True, kw_only=True):
    """How far trials are."""

    done: int  # how many gave figures
    failed: int  # how many failed
    skipped: int  # how many were not tried
    left: int  # how many are still to run


class SweepDevice(TrialCounts, frozen=True, kw_only=True):
    """How far the trials of a device are."""

    device: str  # where trials ran


class SweepFailure(Figure, frozen=True, kw_only=True):
    """A trial that failed."""

    network: str  # as it was named
    stage: str  # training or inference
    batch_size: int  # images per step
    device: str  # where it ran
    status: str  # how it ended, with its reason
    message: str | None = None  # its last words


class SweepStatus(TrialCounts, frozen=True, kw_only=True):
    """How far a sweep is."""

    store: str  # its file
    plan: str | None = None  # what was run now; None where somebody only asked
    planned: int | None = None  # trials of that plan
    ran: int | None = None  # of them, how many ran now
    plans: list[SweepPlanName]  # that were run into the store
    devices: list[SweepDevice]  # one row each
    retried: int  # attempts that were tried again
    duplicates: int  # late ones, kept apart
    statuses: list[EndingCount]  # how many trials ended so, with the reason
    last_failures: list[SweepFailure]  # the latest few


class SweepSummary(SweepStatus, frozen=True, kw_only=True):
    """Everything that views of a sweep show."""

    schema: int = SWEEP_SCHEMA  # the version of these keys
    rows: list[SweepRow]  # one per trial
    groups: list[SweepGroup]  # by name
    pareto: list[ParetoPoint]  # speed against size
    networks: list[SweepNetwork]  # one row each
    axes: list[SweepAxis]  # what was varied
    endings: list[EndingCount]  # by kind
    environments: list[SweepEnvironment]  # where trials ran
    measured_s: float  # time in trials
    first_ended_at: str | None  # UTC; None: nothing has ended
    last_ended_at: str | None  # UTC
    pictures: tuple[str, ...] = ()  # files

    @property
    def failed_rows(self) -> list[SweepRow]:
        """Trials that gave no figure."""
        return [row for row in self.rows if row.kind != "ok"]


class DeviceTrials(Figure, frozen=True, kw_only=True):
    """Trials that a device would run."""

    device: str  # where it ran
    trials: int  # how many


class RefusedTrial(Figure, frozen=True, kw_only=True):
    """A trial that cannot run here."""

    trial: str  # in words
    why: str  # the reason


class SweepForecast(Figure, frozen=True, kw_only=True):
    """What a plan would do: `sweep --dry-run`."""

    plan: str  # its name
    store: str  # its file
    trials: int  # how many
    excluded: int  # trials that the plan leaves out
    cannot_run: list[RefusedTrial]  # trials that are refused here
    devices: list[DeviceTrials]  # one row each
    estimated_s: float  # for all of them
    estimated_from: str  # what the estimate rests on
    disk_bytes: int  # of the store
    order: list[str]  # of the trials, in words


def summarize_sweep(stored: Sequence[Mapping[str, Json]], status: Mapping[str, Json]) -> SweepSummary:
    """All figures of a sweep from its store's rows; `status` is how far it is, by the store itself."""
    found = read_status(status)
    rows = [read_row(row) for row in stored]
    # curves and tables by name: in a random order of trials nothing is found
    groups = sorted(_group_rows(rows), key=lambda group: sort_key(group.name))
    ends = sorted(row.ended_at for row in rows if row.ended_at)
    return SweepSummary(
        **{name: getattr(found, name) for name in SweepStatus.__struct_fields__},
        rows=rows,
        groups=groups,
        pareto=find_front(groups),
        networks=_describe_networks(rows),
        axes=_list_axes(rows),
        endings=[
            EndingCount(name=kind, trials=trials)
            for kind, trials in Counter(row.kind for row in rows).most_common()
        ],
        environments=_read_environments(stored),
        measured_s=sum(row.seconds or 0.0 for row in rows),
        first_ended_at=ends[0] if ends else None,
        last_ended_at=ends[-1] if ends else None,
    )


def read_status(status: Mapping[str, Json]) -> SweepStatus:
    """What a store says of itself."""
    statuses = status.get("statuses")
    counts = statuses.items() if isinstance(statuses, Mapping) else ()
    named = [{"name": name, "trials": trials} for name, trials in counts]
    return msgspec.convert({**status, "statuses": named}, SweepStatus)


def read_row(stored: Mapping[str, Json]) -> SweepRow:
    """A row of a store."""
    return msgspec.convert({**stored, "name": shorten_name(str(stored["network"]))}, SweepRow)


def shorten_name(network: str) -> str:
    """A network's own name, without the folders it lies in."""
    return network.rstrip("/").rpartition("/")[2]


def sort_key(name: str) -> list[tuple[int, str]]:
    """Sorts p5 before p30: figures inside a name count as figures."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _group_rows(rows: Sequence[SweepRow]) -> list[SweepGroup]:
    names = SweepConditions.__struct_fields__
    found: dict[tuple[str | int | None, ...], list[SweepRow]] = {}
    for row in rows:
        if row.kind == "ok":
            found.setdefault(tuple(getattr(row, name) for name in names), []).append(row)
    varying = [name for index, name in enumerate(names) if len({key[index] for key in found}) > 1]
    return [_draw_group(members, varying) for members in found.values()]


def _draw_group(members: Sequence[SweepRow], varying: Sequence[str]) -> SweepGroup:
    by_batch: dict[int, list[SweepRow]] = {}
    for row in members:
        by_batch.setdefault(row.batch_size, []).append(row)
    points = [_draw_point(batch, rows) for batch, rows in sorted(by_batch.items())]
    rates = [(point.batch_size, point.images_per_s) for point in points if point.images_per_s is not None]
    best_batch, best_rate = max(rates, key=lambda pair: pair[1], default=(None, None))
    conditions = {name: getattr(members[0], name) for name in SweepConditions.__struct_fields__}
    extra = [conditions[name] for name in varying if name not in ("network", "environment")]
    return SweepGroup(
        **conditions,
        name=" ".join([members[0].name, *(str(value) for value in extra if value)]),
        parameters=_first_parameters(members),
        points=points,
        best_batch=best_batch,
        best_images_per_s=best_rate,
        stops_to_pay_at=find_stop_to_pay(rates),
    )


def _first_parameters(rows: Sequence[SweepRow]) -> int | None:
    return next((row.parameters for row in rows if row.parameters), None)


def _draw_point(batch: int, rows: Sequence[SweepRow]) -> SweepPoint:
    """Repetitions of the same configuration become their median."""
    names = ("step_ms", "step_low_ms", "step_high_ms", "images_per_s", "allocated_bytes", "process_bytes")
    known = {name: [value for row in rows if (value := getattr(row, name)) is not None] for name in names}
    return SweepPoint(
        batch_size=batch,
        repetitions=len(rows),
        unstable=any(row.is_unstable for row in rows),
        **{name: median(values) if values else None for name, values in known.items()},
    )


def find_stop_to_pay(curve: Sequence[tuple[int, float]]) -> int | None:
    """The batch from which on no larger one gains 5 % per doubling; None if the last still does."""
    for index, (batch, rate) in enumerate(curve):
        later = curve[index + 1 :]
        if later and all(
            fast < rate * (1 + PAYS) ** log2(larger / batch) for larger, fast in later if larger > batch
        ):
            return batch
    return None


def find_front(groups: Sequence[SweepGroup]) -> list[ParetoPoint]:
    """Best images/s against parameters, per stage; `front`: no network is both faster and larger.

    More parameters stand for more capacity: on the front, to be faster one must be smaller.
    """
    known = [
        (group, group.parameters, group.best_images_per_s)
        for group in groups
        if group.parameters and group.best_images_per_s
    ]
    return [
        ParetoPoint(
            name=group.name,
            network=group.network,
            stage=group.stage,
            parameters=size,
            images_per_s=rate,
            front=not any(
                other.stage == group.stage
                and other_size >= size
                and other_rate >= rate
                and (other_size, other_rate) != (size, rate)
                for other, other_size, other_rate in known
            ),
        )
        for group, size, rate in known
    ]


def _describe_networks(rows: Sequence[SweepRow]) -> list[SweepNetwork]:
    found = []
    for network in sorted({row.network for row in rows}, key=sort_key):
        own = [row for row in rows if row.network == network]
        measured = [row for row in own if row.kind == "ok"]
        found.append(
            SweepNetwork(
                name=own[0].name,
                network=network,
                parameters=_first_parameters(own),
                measured=len(measured),
                failed=sum(row.kind in FAILED_ONES for row in own),
                skipped=sum(row.kind == "skipped" for row in own),
                largest_batch=max((row.batch_size for row in measured), default=None),
                best_images_per_s=max(
                    (row.images_per_s for row in measured if row.images_per_s), default=None
                ),
            )
        )
    return found


def _list_axes(rows: Sequence[SweepRow]) -> list[SweepAxis]:
    """What was varied and what was the same, in words."""
    found = []
    for name in _AXES:
        values = {value for row in rows if (value := getattr(row, name)) is not None}
        ordered = sorted(values, key=lambda value: (not isinstance(value, str), value))
        if ordered:
            words = ", ".join(str(value) for value in ordered[:_MOST_VALUES])
            more = f" and {len(ordered) - _MOST_VALUES} more" if len(ordered) > _MOST_VALUES else ""
            found.append(SweepAxis(name=name.replace("_", " "), values=words + more))
    return found


def _read_environments(stored: Sequence[Mapping[str, Json]]) -> list[SweepEnvironment]:
    """Facts of every environment with how many rows it has."""
    counts = Counter(str(row.get("environment")) for row in stored)
    facts = {str(row.get("environment")): row.get("environment_facts") for row in stored}
    return [
        SweepEnvironment(rows=rows, facts=_flatten_facts("", facts[key]))
        for key, rows in counts.most_common()
    ]


def _flatten_facts(name: str, value: Json) -> list[EnvironmentFact]:
    """Nested facts as a dotted name and a text each; what is empty is left out."""
    if isinstance(value, Mapping):
        return [
            fact
            for key, inner in value.items()
            for fact in _flatten_facts(f"{name}.{key}" if name else str(key), inner)
        ]
    if value is None or value == "" or value == []:
        return []
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return [EnvironmentFact(name=name, text=text)]
