"""What fitting and scoring device models, and pruning networks, tell."""

from __future__ import annotations

from detscope.analyze.figure import Figure


class FittedTarget(Figure, frozen=True, kw_only=True):
    """How one target is predicted; widths are half of a 90 % interval, as the logarithm of a factor."""

    near: str  # method for networks like those that were measured
    far: str  # method for others
    beside_width: float | None  # between measured cases; None: as for seen networks
    near_width: float  # for networks like those that were measured
    far_width: float  # for others
    left_out_errors: dict[str, dict[str, float]]  # situation -> method -> mean error


class FitResult(Figure, frozen=True, kw_only=True):
    """A device model in figures."""

    model: str  # its file
    stage: str  # training or inference
    rows: int  # measured steps
    layer_rows: int  # measured single layers
    networks: list[str]  # that were measured
    fingerprint: str  # of the data
    limit_bytes: float | None  # memory that there is
    conditions: dict[str, str]  # what all rows have in common
    left_out: dict[str, int]  # why -> rows
    notes: list[str]  # what else is to be known
    targets: dict[str, FittedTarget]  # memory, latency
    layer_times: str | None = None  # where times of single layers are kept


class MethodScore(Figure, frozen=True, kw_only=True):
    """Errors of one method under one protocol, as shares of what was measured."""

    target: str  # memory or latency
    protocol: str  # what was hidden from the model
    method: str  # that predicted
    rows: int  # that were asked
    mean: float  # every network weighs the same
    median: float  # median error
    p90: float  # nine in ten are closer
    within_10_percent: float  # share of the rows
    coverage: float  # share inside the 90 % intervals
    width: float  # median width of those
    by_network: dict[str, float]  # error of each


class FitDecisions(Figure, frozen=True, kw_only=True):
    """Fits or not, asked of networks that were not seen."""

    rows: int  # that were asked
    right: float  # share; "too close to call" counts by the side it leans to
    plain: int  # rows with a plain answer
    plain_right: float  # share of the plain answers
    false_fits: int  # said to fit and did not
    beyond_but_fits: int  # a plain "fits" of what was predicted far beyond the limit
    too_close: int  # answers without a side
    by_network: dict[str, float]  # share of right answers of each


class ScoreResult(Figure, frozen=True, kw_only=True):
    """How wrong predictors are, with the noise of the data beside it."""

    rows: int  # measured steps
    conditions: dict[str, str]  # what all rows have in common
    left_out: dict[str, int]  # why -> rows
    noise_floor: dict[str, float | None]  # by target; None: nothing was measured twice
    measured_interval: dict[str, float | None]  # by target; how well a median is known
    scores: list[MethodScore]  # one row per target, protocol and method
    decisions: FitDecisions | None  # None: every run fitted
    notes: list[str]  # what else is to be known
    picture: str | None = None  # where it is drawn


class LayerWidths(Figure, frozen=True, kw_only=True):
    """Output channels of a network's layers."""

    layers: int  # how many
    smallest: int  # channels
    median: int  # channels
    largest: int  # channels


class PrunedNetwork(Figure, frozen=True, kw_only=True):
    """A network folder that was made."""

    network: str  # its name
    folder: str  # where it lies
    model: str  # what it was made from
    source: str  # torchvision, timm, ...
    kind: str  # detector or classifier
    mode: str  # how channels were chosen
    seed: int  # of weights and choices
    level_asked: float  # per cent of the parameters
    level_reached: float  # per cent of the parameters
    why_not: str | None = None  # why the level was not reached
    parameters: int  # of the network
    base_parameters: int  # before pruning
    flops: float  # one image forward; multiply and add count as two
    widths: LayerWidths  # of its layers


class FailedPruning(Figure, frozen=True, kw_only=True):
    """A model that could not be pruned."""

    model: str  # its name
    reason: str  # in a sentence
    hint: str  # what to do


class PruneResult(Figure, frozen=True, kw_only=True):
    """Every model at every level."""

    out: str  # folder of the network folders
    mode: str  # how channels were chosen
    seed: int  # of weights and choices
    networks: list[PrunedNetwork]  # that were made
    failed: list[FailedPruning]  # models that could not be pruned
