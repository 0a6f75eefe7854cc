"""Scoring: every method under every protocol, with the noise of the data beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from detscope.errors import InputError
from detscope.predict.device.model import STAGES
from detscope.predict.layers.model import fit_layers
from detscope.predict.layers.times import read_layer_times
from detscope.predict.memory.model import keep_outcomes
from detscope.predict.models.methods import METHODS, TARGETS
from detscope.predict.samples import StepSample, keep_measured
from detscope.predict.score import (
    PROTOCOLS,
    UNSEEN_DEVICE,
    measure_interval,
    measure_noise,
    predict_left_out,
    score_decisions,
    split_samples,
    summarize_score,
)
from detscope.sessions.fit.fitting import FEWEST_ROWS, Told, choose_values
from detscope.sessions.fit.sources import parse_where, read_measured


@dataclass(frozen=True)
class ScoreRequest:
    """What the user asked for."""

    files: Sequence[Path]
    target: str = "memory,latency"
    stage: str = "training"
    method: str = "auto,trees"
    protocol: str = "unseen-levels,unseen-networks"
    device: str | None = None
    where: str | None = None
    layer_times: Path | None = None  # of single layers: latency is then their sum
    points: bool = False  # every prediction too, for a picture


def run_score(request: ScoreRequest, told: Told = lambda _: None) -> dict[str, Any]:
    """Figures by target, protocol and method; decisions where some runs ran out of memory."""
    (stage,) = choose_values(request.stage, STAGES, "--stage")[:1]
    targets = choose_values(request.target, list(TARGETS), "--target")
    protocols = choose_values(request.protocol, list(PROTOCOLS), "--protocol")
    methods = choose_values(request.method, METHODS, "--method")
    where = parse_where(request.where, request.device)
    all_devices = UNSEEN_DEVICE in protocols
    measured = read_measured(request.files, stage=stage, where=where, all_devices=all_devices, told=told)
    samples, notes = measured.samples, list(measured.notes)
    if all_devices and len(protocols) > 1:
        notes.append("all protocols are given the rows of all devices: score one device for the others")
    counts = {one: len(keep_measured(samples, TARGETS[one])) for one in targets}
    targets = [one for one, count in counts.items() if count >= FEWEST_ROWS]
    few = {one: count for one, count in counts.items() if count < FEWEST_ROWS}
    notes += [f"{one}: {count} rows have it, too few to score" for one, count in few.items()]
    if not targets:
        raise InputError("; ".join(notes[-2:]), "measure more batch sizes or networks")
    asked = [
        (target, protocol)
        for target in targets
        for protocol in protocols
        if _can_split(samples, target, protocol, notes, alone=len(protocols) == 1)
    ]
    if not asked:
        raise InputError("; ".join(dict.fromkeys(notes[-2:])), "add samples, or choose another --protocol")
    table = None
    if request.layer_times is not None:
        table = fit_layers(read_layer_times(request.layer_times), training=stage == "training")
    scores, points = [], []
    for target, protocol in asked:
        for method in methods:
            told(f"{target}, {protocol}, {method}")
            made = predict_left_out(
                samples, target, protocol, method, training=stage == "training", table=table
            )
            scores.append(asdict(summarize_score(target, protocol, method, made)))
            if request.points:
                words = {"target": target, "protocol": protocol, "method": method}
                points += [words | row for row in made.list_rows(TARGETS[target])]
    return {
        "rows": len(samples),
        "conditions": measured.kept,
        "left_out": measured.left_out,
        "noise_floor": {one: measure_noise(samples, one) for one in targets},
        "measured_interval": {one: measure_interval(samples, one) for one in targets},
        "scores": scores,
        **({"points": points} if request.points else {}),
        "decisions": _score_decisions(samples, notes) if "memory" in targets else None,
        "notes": notes,
    }


def _can_split(
    samples: Sequence[StepSample], target: str, protocol: str, notes: list[str], *, alone: bool
) -> bool:
    """Whether the samples can be split so; of several protocols, one that cannot is left out."""
    try:
        split_samples(keep_measured(samples, TARGETS[target]), protocol)
    except InputError as error:
        if alone:
            raise
        notes.append(f"{target}: {error.message}")
        return False
    return True


def _score_decisions(samples: Sequence[StepSample], notes: list[str]) -> dict[str, Any] | None:
    """Fits or not, where some runs ran out of memory and there are other networks to learn from."""
    if all(one.passed for one in samples):
        return None
    if len({one.network for one in keep_measured(samples, "process_bytes")}) < 2:
        notes.append("fits or not: needs two networks")
        return None
    return asdict(score_decisions(samples, keep_outcomes(samples)))
