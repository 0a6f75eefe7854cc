"""How wrong a predictor is under a protocol: errors, intervals, out-of-memory decisions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Any

import numpy as np

from detscope.errors import InputError
from detscope.predict.device.model import transfer_target
from detscope.predict.layers.model import LayerTable
from detscope.predict.memory.model import (
    FITS,
    NEVER_BEYOND,
    TOO_CLOSE,
    decide_fit,
    fit_memory,
    lean_towards,
    learn_limit,
)
from detscope.predict.models.choice import COVERAGE, Estimate
from detscope.predict.models.methods import TARGETS, fit_method
from detscope.predict.samples import Array, StepSample, choose_spread, keep_measured

SEEN_LEVELS = (0, 30, 50, 70, 90)
UNSEEN_DEVICE = "unseen-device"
CLOSE = 0.1
_GIVEN = 5  # samples of a new device
_SEED = 0


def measure_noise(samples: Sequence[StepSample], target: str) -> float | None:
    """Median relative difference of cases that were measured more than once; None where none was.

    That is how well the data itself is known: no predictor can be expected to do better.
    """
    seen: dict[tuple[str, str, int, str, int], list[float]] = {}
    for one in keep_measured(samples, TARGETS[target]):
        key = (one.device, one.network, one.level, one.case.graph.name, one.case.batch)
        seen.setdefault(key, []).append(one.get_value(TARGETS[target]) or 0.0)
    spread = [(max(found) - min(found)) / float(np.mean(found)) for found in seen.values() if len(found) > 1]
    return float(np.median(spread)) if spread else None


def measure_interval(samples: Sequence[StepSample], target: str) -> float | None:
    """Median half width of the 95 % intervals that were measured, as a share; None where none was.

    Only latencies have one: it tells how well a median is known, not how it differs from day to day.
    """
    halves = [
        (one.latency_high_ms - one.latency_low_ms) / 2 / one.latency_ms
        for one in keep_measured(samples, "latency_ms")
        if one.latency_ms and one.latency_low_ms is not None and one.latency_high_ms is not None
    ]
    return float(np.median(halves)) if halves and target == "latency" else None


@dataclass(frozen=True)
class SampleSplit:
    """A model is fitted on `seen`, transferred by `given` if there are some, and asked about `asked`."""

    name: str
    seen: list[StepSample]
    asked: list[StepSample]
    given: list[StepSample] = field(default_factory=list)


def _split_by_mask(name: str, samples: Sequence[StepSample], asked: Sequence[bool]) -> SampleSplit:
    seen = [not one for one in asked]
    return SampleSplit(name, list(compress(samples, seen)), list(compress(samples, asked)))


def _split_rows(samples: Sequence[StepSample]) -> Iterator[SampleSplit]:
    """A fifth of the rows, drawn at random: what most reported errors are."""
    places = list(range(len(samples)))
    random.Random(_SEED).shuffle(places)
    asked = set(places[: max(1, len(places) // 5)])
    mask = [place in asked for place in range(len(samples))]
    yield _split_by_mask("a fifth of the rows", samples, mask)


def _split_levels(samples: Sequence[StepSample]) -> Iterator[SampleSplit]:
    """Levels 0, 30, 50, 70 and 90 are seen, all others asked; of other levels the ends and every other."""
    levels = sorted({one.level for one in samples})
    seen = set(SEEN_LEVELS) if set(SEEN_LEVELS) <= set(levels) else {*levels[::2], *levels[-1:]}
    yield _split_by_mask("levels between", samples, [one.level not in seen for one in samples])


def _split_names(
    samples: Sequence[StepSample], *, name_of: Callable[[StepSample], str]
) -> Iterator[SampleSplit]:
    """Everything of one name once asked and not seen."""
    names = [name_of(one) for one in samples]
    for name in sorted(set(names)):
        yield _split_by_mask(name, samples, [own == name for own in names])


def _split_devices(samples: Sequence[StepSample]) -> Iterator[SampleSplit]:
    """Every device once new: the model of the one with the most rows, transferred by a few samples."""
    names = Counter(one.device for one in samples)
    if len(names) < 2:
        raise InputError(
            f"{UNSEEN_DEVICE} needs rows of two devices or more", "give stores of both, or a device column"
        )
    for name in sorted(names):
        source = max((other for other in names if other != name), key=lambda other: (names[other], other))
        own = [one for one in samples if one.device == name]
        given = choose_spread(own, _GIVEN)
        asked = [one for one in own if not any(one is other for other in given)]
        yield SampleSplit(name, [one for one in samples if one.device == source], asked, given)


PROTOCOLS: dict[str, Callable[[Sequence[StepSample]], Iterator[SampleSplit]]] = {
    "random-rows": _split_rows,
    "unseen-levels": _split_levels,
    "unseen-networks": partial(_split_names, name_of=lambda one: one.network),
    # a network without a family is its own
    "unseen-families": partial(_split_names, name_of=lambda one: one.case.graph.family or one.network),
    UNSEEN_DEVICE: _split_devices,
}


def split_samples(samples: Sequence[StepSample], protocol: str) -> list[SampleSplit]:
    """What a model sees and what it is asked; InputError where the samples cannot be split so."""
    found = list(PROTOCOLS[protocol](samples))
    if any(not split.seen or not split.asked for split in found):
        raise InputError(
            f"too few networks or levels for {protocol}", "add samples, or choose another --protocol"
        )
    return found


@dataclass(frozen=True)
class ProtocolScore:
    """Errors are shares of the truth; every network weighs the same in `mean` and `coverage`."""

    target: str
    protocol: str
    method: str
    rows: int
    mean: float
    median: float
    p90: float
    within_10_percent: float
    coverage: float
    width: float  # median of (upper - lower) / predicted
    by_network: dict[str, float]


@dataclass(frozen=True)
class DecisionScore:
    """Fits or not, network by network, with the limit learnt from the others."""

    rows: int
    right: float  # share, where "too close to call" counts by the side it leans to
    plain: int  # rows with a plain answer
    plain_right: float
    false_fits: int
    beyond_but_fits: int  # a plain "fits" for a row predicted more than 10 % beyond the limit
    too_close: int
    by_network: dict[str, float]


@dataclass(frozen=True)
class ScoredRows:
    """What was asked and what came out, row by row."""

    samples: list[StepSample]
    predicted: Array
    lower: Array
    upper: Array

    def list_rows(self, key: str) -> list[dict[str, Any]]:
        """As a picture or a table needs them; `key` is one of the samples' figures."""
        values = zip(
            self.samples, self.predicted.tolist(), self.lower.tolist(), self.upper.tolist(), strict=True
        )
        return [
            {
                "network": one.network,
                "level": one.level,
                "batch": one.case.batch,
                "measured": one.get_value(key),
                "predicted": predicted,
                "lower": lower,
                "upper": upper,
            }
            for one, predicted, lower, upper in values
        ]


def score_method(
    samples: Sequence[StepSample], target: str, protocol: str, method: str, *, training: bool = True
) -> ProtocolScore:
    """Fit on what each split shows, ask what it hides."""
    made = predict_left_out(samples, target, protocol, method, training=training)
    return summarize_score(target, protocol, method, made)


def predict_left_out(
    samples: Sequence[StepSample],
    target: str,
    protocol: str,
    method: str,
    *,
    training: bool = True,
    table: LayerTable | None = None,
) -> ScoredRows:
    """Every prediction under a protocol; where a split gives samples of a new device, they calibrate.

    `table`: single layers that were measured; they are of no network and hide nothing.
    """
    known = keep_measured(samples, TARGETS[target])
    asked: list[StepSample] = []
    parts: list[Estimate] = []
    for split in split_samples(known, protocol):
        model = fit_method(split.seen, target, method, training=training, table=table)
        if split.given:
            model = transfer_target(model, target, split.given)
        parts.append(model.estimate_cases([one.case for one in split.asked]))
        asked += split.asked
    joined = [
        np.concatenate([getattr(part, name) for part in parts]) for name in ("predicted", "lower", "upper")
    ]
    return ScoredRows(asked, *joined)


def summarize_score(target: str, protocol: str, method: str, made: ScoredRows) -> ProtocolScore:
    """All figures of one set of predictions."""
    truth = np.array([one.get_value(TARGETS[target]) for one in made.samples], dtype=float)
    names = np.array([one.network for one in made.samples])
    errors = np.abs(made.predicted / truth - 1)
    inside = (made.lower <= truth) & (truth <= made.upper)
    by_network = {str(name): float(errors[names == name].mean()) for name in np.unique(names)}
    return ProtocolScore(
        target,
        protocol,
        method,
        len(made.samples),
        float(np.mean(list(by_network.values()))),
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        float((errors <= CLOSE).mean()),
        float(np.mean([inside[names == name].mean() for name in np.unique(names)])),
        float(np.median((made.upper - made.lower) / made.predicted)),
        by_network,
    )


def score_decisions(measured: Sequence[StepSample], outcomes: Sequence[StepSample]) -> DecisionScore:
    """Memory models from other networks; so are limit and width of the interval."""
    answers: list[tuple[StepSample, str, str, float]] = []
    by_network = {}
    for split in split_samples(outcomes, "unseen-networks"):
        seen = [one for one in measured if one.network != split.name]
        model = fit_memory(keep_measured(seen, "process_bytes"), hybrid=False)
        known = keep_measured(seen, "process_bytes")
        truth = np.array([one.process_bytes for one in known], dtype=float)
        errors = np.abs(np.log(model.predict([one.case for one in known]) / truth))
        width = float(np.quantile(errors, COVERAGE))
        limit = learn_limit(
            model.predict_unbounded([one.case for one in split.seen]), [one.passed for one in split.seen]
        )
        predicted = model.predict_unbounded([one.case for one in split.asked])
        found = [
            (one, decide_fit(value, limit, width), lean_towards(value, limit), value / limit)
            for one, value in zip(split.asked, predicted.tolist(), strict=True)
        ]
        by_network[split.name] = float(np.mean([(lean == FITS) == one.passed for one, _, lean, _ in found]))
        answers += found
    plain = [(one, word) for one, word, _, _ in answers if word != TOO_CLOSE]
    return DecisionScore(
        len(answers),
        float(np.mean([(lean == FITS) == one.passed for one, _, lean, _ in answers])),
        len(plain),
        float(np.mean([(word == FITS) == one.passed for one, word in plain])),
        sum(word == FITS and not one.passed for one, word in plain),
        sum(word == FITS and ratio > 1 + NEVER_BEYOND for _, word, _, ratio in answers),
        sum(word == TOO_CLOSE for _, word, _, _ in answers),
        by_network,
    )
