"""What fitting and scoring device models, and pruning networks, tell."""

from __future__ import annotations

from detscope.analyze.figure import Figure


class FittedTarget(Figure, frozen=True, kw_only=True):
    """How one target is predicted; widths are half of a 90 % interval, as the logarithm of a factor."""

    near: str  # method for networks like those that were measured
    far: str  # method for others
    beside_width: float | None  # between measured cases; None: as for seen networks
    near_width: float
    far_width: float
    left_out_errors: dict[str, dict[str, float]]  # situation -> method -> mean error


class FitResult(Figure, frozen=True, kw_only=True):
    """A device model in figures."""

    model: str  # its file
    stage: str
    rows: int  # measured steps
    layer_rows: int  # measured single layers
    networks: list[str]
    fingerprint: str  # of the data
    limit_bytes: float | None
    conditions: dict[str, str]  # what all rows have in common
    left_out: dict[str, int]  # why -> rows
    notes: list[str]
    targets: dict[str, FittedTarget]
    layer_times: str | None = None  # where times of single layers are kept


class MethodScore(Figure, frozen=True, kw_only=True):
    """Errors of one method under one protocol, as shares of what was measured."""

    target: str
    protocol: str
    method: str
    rows: int
    mean: float  # every network weighs the same
    median: float
    p90: float
    within_10_percent: float
    coverage: float  # share inside the 90 % intervals
    width: float  # median width of those
    by_network: dict[str, float]


class FitDecisions(Figure, frozen=True, kw_only=True):
    """Fits or not, asked of networks that were not seen."""

    rows: int
    right: float  # share; "too close to call" counts by the side it leans to
    plain: int  # rows with a plain answer
    plain_right: float
    false_fits: int  # said to fit and did not
    beyond_but_fits: int  # a plain "fits" of what was predicted far beyond the limit
    too_close: int
    by_network: dict[str, float]


class ScoreResult(Figure, frozen=True, kw_only=True):
    """How wrong predictors are, with the noise of the data beside it."""

    rows: int
    conditions: dict[str, str]
    left_out: dict[str, int]  # why -> rows
    noise_floor: dict[str, float | None]  # by target; None: nothing was measured twice
    measured_interval: dict[str, float | None]  # by target; how well a median is known
    scores: list[MethodScore]
    decisions: FitDecisions | None
    notes: list[str]
    picture: str | None = None  # where it is drawn


class LayerWidths(Figure, frozen=True, kw_only=True):
    """Output channels of a network's layers."""

    layers: int  # how many
    smallest: int
    median: int
    largest: int


class PrunedNetwork(Figure, frozen=True, kw_only=True):
    """A network folder that was made."""

    network: str  # its name
    folder: str
    model: str  # what it was made from
    source: str
    kind: str
    mode: str
    seed: int
    level_asked: float  # per cent of the parameters
    level_reached: float
    why_not: str | None = None  # why the level was not reached
    parameters: int
    base_parameters: int
    flops: float  # one image forward; multiply and add count as two
    widths: LayerWidths


class FailedPruning(Figure, frozen=True, kw_only=True):
    """A model that could not be pruned."""

    model: str
    reason: str
    hint: str


class PruneResult(Figure, frozen=True, kw_only=True):
    """Every model at every level."""

    out: str  # folder of the network folders
    mode: str
    seed: int
    networks: list[PrunedNetwork]
    failed: list[FailedPruning]
