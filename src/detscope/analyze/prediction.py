"""What is expected of a network before it runs, and how far that was from what was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Literal, TypedDict

import msgspec

from detscope.analyze.figure import Figure
from detscope.errors import InputError

if TYPE_CHECKING:
    from detscope.runs.reader import Run
    from detscope.runs.standard_json import Json

FILE_NAME = "predicted.json"
VERSION = 1
CLOSE = 0.1  # a prediction within 10 % counts as close
_FAR = re.compile(r"^(\w+): extrapolated, (\d+) of (\d+) features lie beyond")
_HINT = "predict the run again, or remove the file"

Ends = tuple[float, float]
Fits = Literal["fits", "too close to call", "does not fit", "cannot tell"]


class PredictedBytes(Figure, frozen=True, kw_only=True):
    """A category or stage and what it holds."""

    name: str  # what it is called
    bytes: float  # what it holds


class StageShare(Figure, frozen=True, kw_only=True):
    """A stage and its share of the step."""

    name: str  # what it is called
    share: float  # of the whole


class PredictedStep(Figure, frozen=True, kw_only=True):
    """A step at one batch size; what cannot be known is None."""

    batch: int  # images per step
    latency_ms: float | None = None  # of the step
    latency_ms_interval: Ends | None = None  # 90 %
    images_per_s: float | None = None  # throughput
    allocated_bytes: float | None = None  # highest sum of live tensors, by CUDA's rounding
    reserved_bytes: float | None = None  # by CUDA's allocator
    beside: tuple[PredictedBytes, ...] = ()  # what a process holds on a CUDA device besides, assumed
    device_bytes: float | None = None  # reserved and beside
    categories: tuple[PredictedBytes, ...] = ()  # what the allocated peak is made of
    cpu_allocated_bytes: float | None = None  # the same on this CPU
    cpu_categories: tuple[PredictedBytes, ...] = ()  # what that peak is made of
    process_bytes: float | None = None  # of the process, at most what the device has
    process_bytes_interval: Ends | None = None  # 90 %
    process_bytes_unbounded: float | None = None  # if the device were large enough
    needed_bytes: float | None = None  # what decides whether it fits
    needed_bytes_interval: Ends | None = None  # 90 %
    fits: Fits = "cannot tell"  # in the memory limit
    fits_why: str | None = None  # why that cannot be told
    extrapolated: bool | None = None  # far from every network that was measured; None: none was
    assumed: tuple[str, ...] = ()  # what the figures rest on


class TargetMethods(Figure, frozen=True, kw_only=True):
    """Methods of a device model for one target."""

    target: str  # memory or latency
    near: str  # for networks like those that were measured
    far: str  # for others


class ModelGrounds(Figure, frozen=True, kw_only=True):
    """The device model that was asked."""

    file: str | None = None  # of the model
    fingerprint: str | None = None  # of its data
    rows: int | None = None  # measured steps it was fitted on
    networks: tuple[str, ...] = ()  # that it was fitted on
    methods: tuple[TargetMethods, ...] = ()  # by target


class Extrapolation(Figure, frozen=True, kw_only=True):
    """How many features of the network lie beyond everything that was measured."""

    target: str  # memory or latency
    features_outside: int  # beyond everything that was measured
    features: int  # of a network


class OutsideGroups(Figure, frozen=True, kw_only=True):
    """In what the network goes beyond everything that was measured, in words."""

    target: str  # memory or latency
    groups: list[str]  # in words


class ComparedFigure(Figure, frozen=True, kw_only=True):
    """One figure, predicted and measured."""

    name: str  # what it is called
    unit: str | None = None  # ms or bytes
    predicted: float | None = None  # before it ran
    predicted_interval: Ends | None = None  # 90 %
    measured: float | None = None  # by the run
    measured_interval: Ends | None = None  # 95 %
    error: float | None = None  # predicted over measured less one
    inside: bool | None = None  # whether the interval held what was measured
    why: str | None = None  # why there is no error


class Prediction(Figure, frozen=True, kw_only=True):
    """The answer for one network; of a run also beside what it measured."""

    network: str | None = None  # its name
    stage: str | None = None  # training or inference
    optimizer: str | None = None  # sgd or adam
    image_size: tuple[int, int] | None = None  # pixels, width and height
    fingerprint: str | None = None  # of the device model's data
    limit_bytes: float | None = None  # memory that there is
    rows: tuple[PredictedStep, ...] = ()  # one per batch size
    largest_batch_that_fits: int | None = None  # None: cannot be told, or none
    smallest_batch_that_does_not_fit: int | None = None  # None: cannot be told, or none
    best_batch_for_throughput: int | None = None  # of the rows; None: no latency is known
    latency_why: str | None = None  # why no latency is known
    places_at_batch: int | None = None  # of which the shares below are told
    latency_by_stage: tuple[StageShare, ...] = ()  # where the time goes
    memory_by_stage: tuple[PredictedBytes, ...] = ()  # bytes of activations by stage
    extrapolations: tuple[Extrapolation, ...] = ()  # how far beyond what was measured
    outside: tuple[OutsideGroups, ...] = ()  # beyond what was measured, in words
    device_model: ModelGrounds | None = None  # None: no model was asked
    notes: tuple[str, ...] = ()  # what else is to be known
    cannot_tell: tuple[str, ...] = ()  # what is not known, and why
    measured: tuple[str, ...] = ()  # what of it was measured here rather than computed
    run: str | None = None  # the run that was predicted
    compared: list[ComparedFigure] | None = None  # None where no run was predicted
    categories: tuple[ComparedFigure, ...] = ()  # the peak by category
    made_at: str | None = None  # UTC
    version: int | None = None  # of predicted.json, where it was read from there
    kept: str | None = None  # where the answer is kept
    picture: str | None = None  # where it is drawn


def compare_figure(
    name: str,
    unit: str,
    predicted: float | None,
    measured: float | None,
    *,
    interval: Ends | None = None,
    measured_interval: Ends | None = None,
    why: str = "",
) -> ComparedFigure:
    """One figure beside the other; without an error where that cannot be told, with `why`."""
    error = None
    if predicted is not None and measured is not None and measured > 0:
        error = predicted / measured - 1
    return ComparedFigure(
        name=name,
        unit=unit,
        predicted=predicted,
        predicted_interval=interval,
        measured=measured,
        measured_interval=measured_interval,
        error=error,
        inside=interval[0] <= measured <= interval[1] if interval and measured is not None else None,
        why=why,
    )


def compare_categories(predicted: Mapping[str, float], measured: Mapping[str, float]) -> list[ComparedFigure]:
    """Categories of a peak, largest first; one that only one side has is zero on the other."""
    names = sorted(
        {*predicted, *measured}, key=lambda name: -max(predicted.get(name, 0), measured.get(name, 0))
    )
    pairs = [(name, float(predicted.get(name, 0)), float(measured.get(name, 0))) for name in names]
    return [compare_figure(name, "bytes", one, other) for name, one, other in pairs if one or other]


class _StoredPrediction(TypedDict):
    """What every predicted.json says."""

    version: int
    compared: list[ComparedFigure]


def read_predicted(run: Run) -> Prediction | None:
    """What `detscope predict RUN` left in the run; None where nobody asked."""
    from detscope.runs.reader import read_json

    path = run.folder / FILE_NAME
    if not path.exists():
        return None
    found = read_json(path, _StoredPrediction, _HINT)
    if found["version"] != VERSION:
        version = found["version"]
        raise InputError(f"{path} is of version {version}, this detscope reads {VERSION}", "predict it again")
    try:
        return read_prediction(found)
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged: {str(error)[:200]}", _HINT) from error


def read_prediction(found: Mapping[str, Json]) -> Prediction:
    """An answer as `predict` gives it and as predicted.json keeps it; free names become rows."""
    rows = [_read_step(row) for row in _list_of(found.get("rows"))]
    model = found.get("device_model")
    notes = [str(note) for note in _list_of(found.get("notes"))]
    unknown = [str(text) for text in _list_of(found.get("cannot_tell"))]
    older = "extrapolations" not in found  # a file of before has sentences in the place of these fields
    far = [match for note in notes if older and (match := _FAR.match(note))]
    reasons = [text.partition(": ")[2] for text in unknown if older and text.startswith("latency")]
    return msgspec.convert(
        {
            **found,
            "rows": rows,
            "latency_why": (reasons[0] if reasons else None) if older else found.get("latency_why"),
            "latency_by_stage": _name_rows(found.get("latency_by_stage"), "share"),
            "memory_by_stage": _name_rows(found.get("memory_by_stage"), "bytes"),
            "extrapolations": [
                {"target": one[1], "features_outside": int(one[2]), "features": int(one[3])} for one in far
            ]
            if older
            else found.get("extrapolations"),
            "outside": [
                {"target": target, "groups": groups}
                for target, groups in _map_of(found.get("outside")).items()
            ],
            "device_model": _read_grounds(model) if isinstance(model, Mapping) else None,
            "notes": [note for note in notes if not (older and _FAR.match(note))],
            "cannot_tell": unknown,
        },
        Prediction,
    )


def _read_step(found: Json) -> dict[str, Json]:
    row = dict(_map_of(found))
    fits, _, why = str(row.get("fits") or "cannot tell").partition(": ")  # of a file of before
    why = str(row.get("fits_why") or why)
    parts = {key: _name_rows(row.get(key), "bytes") for key in ("categories", "cpu_categories", "beside")}
    return {**row, **parts, "fits": fits, "fits_why": why or None}


def _read_grounds(model: Mapping[str, Json]) -> dict[str, Json]:
    methods = {target: _list_of(names) for target, names in _map_of(model.get("methods")).items()}
    named = [
        {"target": target, **dict(zip(("near", "far"), names, strict=False))}
        for target, names in methods.items()
    ]
    return {**model, "networks": _list_of(model.get("networks")), "methods": named}


def _name_rows(found: Json, key: str) -> list[dict[str, Json]]:
    return [{"name": name, key: value} for name, value in _map_of(found).items()]


def _map_of(found: Json) -> Mapping[str, Json]:
    return found if isinstance(found, Mapping) else {}


def _list_of(found: Json) -> Sequence[Json]:
    return found if isinstance(found, list | tuple) else []


class PredictionPoint(Figure, frozen=True, kw_only=True):
    """A measured step and what was predicted without having seen it."""

    target: str = ""  # latency (ms) or memory (bytes)
    protocol: str = ""  # what was hidden from the model
    method: str = ""  # that predicted
    network: str  # as it was named
    predicted: float | None = None  # before it ran
    measured: float | None = None  # what it was


class NetworkError(Figure, frozen=True, kw_only=True):
    """The mean error of one network, as a share of what was measured."""

    network: str  # as it was named
    error: float  # mean, as a share of what was measured


class PredictionErrors(Figure, frozen=True, kw_only=True):
    """How wrong predictions are; every network weighs the same in the mean."""

    rows: int  # that were asked
    mean: float | None  # mean error
    within_10_percent: float | None  # share of the rows
    by_network: list[NetworkError]  # worst first


class ScorePanel(Figure, frozen=True, kw_only=True):
    """Points of one target, protocol and method, and their errors."""

    target: str  # memory or latency
    protocol: str  # what was hidden from the model
    method: str  # that predicted
    points: list[PredictionPoint]  # those with both figures, above zero
    errors: PredictionErrors  # of these points


def list_score_panels(points: Sequence[PredictionPoint]) -> list[ScorePanel]:
    """Points by target, protocol and method, in the order in which they come."""
    found: dict[tuple[str, str, str], list[PredictionPoint]] = {}
    for point in points:
        if (point.predicted or 0) > 0 and (point.measured or 0) > 0:
            found.setdefault((point.target, point.protocol, point.method), []).append(point)
    return [
        ScorePanel(target=target, protocol=protocol, method=method, points=own, errors=measure_errors(own))
        for (target, protocol, method), own in found.items()
    ]


def measure_errors(points: Sequence[PredictionPoint]) -> PredictionErrors:
    """Mean error, share within 10 %, and the mean of each network."""
    by_network: dict[str, list[float]] = {}
    for point in points:
        if point.predicted and point.measured:
            error = abs(point.predicted / point.measured - 1)
            by_network.setdefault(point.network, []).append(error)
    errors = [error for found in by_network.values() for error in found]
    means = {name: fmean(found) for name, found in by_network.items()}
    return PredictionErrors(
        rows=len(errors),
        mean=fmean(means.values()) if means else None,
        within_10_percent=sum(error <= CLOSE for error in errors) / len(errors) if errors else None,
        by_network=[
            NetworkError(network=name, error=error)
            for name, error in sorted(means.items(), key=lambda item: -item[1])
        ],
    )
