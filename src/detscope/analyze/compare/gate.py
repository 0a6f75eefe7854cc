"""Gates of a comparison: `step_p50 > +5%`, `memory.peak > +2%`, `stage.rpn > 3ms`.

A signed threshold is about the change, an unsigned one about the later run's own value. A change is only
held against a gate when it can be told from noise; where it cannot, the gate says so. A figure that one of
the runs does not have fails its gate: what guards nothing must not look like a guard.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from detscope.analyze.compare.change import Change
from detscope.analyze.figure import Figure
from detscope.errors import UsageError

_GATE = re.compile(
    r"^\s*(?P<name>[^<>=]+?)\s*(?P<op>>=|<=|>|<)\s*(?P<sign>[+-]?)\s*(?P<value>\d+(?:\.\d+)?)\s*(?P<unit>%|[A-Za-z]*)\s*$"
)
_UNITS = {"": 1.0, "%": 0.01, "ms": 1.0, "s": 1e3, "us": 1e-3, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_UNITS |= {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
# what a gate may name, and what that is
GATE_NAMES = {
    "step_p50": "median step, ms",
    "step_p95": "95th percentile of the step, ms; needs 90 steps",
    "images_per_s": "images per second",
    "phase.NAME": "phase of the step, ms: data, transfer, forward, backward, optimizer, other",
    "stage.NAME": "stage of the detector, ms: stage.backbone, stage.rpn, ...",
    "module.PATH": "module, own ms: module.roi_heads.box_head",
    "operator.NAME": "operator, ms per step (--level ops): operator.aten::convolution",
    "kernel.NAME": "kernel, ms per step",
    "device.NAME": "device: utilisation, busy_ms, idle_ms, idle_data, occupancy, ...",
    "memory.NAME": "bytes: peak, process, or a category such as activations",
    "accuracy.NAME": "AP, AP50, AP75, AP_small, coco_mask.AP, ...",
    "census.NAME": "counts per step (--census): waits, launches, read, size, copy",
}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True)
class Gate:
    """One condition that fails a comparison."""

    text: str
    name: str
    operator: str
    threshold: float
    relative: bool
    of_change: bool


class GateResult(Figure, frozen=True, kw_only=True):
    """A gate held against the figures of a comparison."""

    gate: str  # as it was asked for
    figure: str  # the name in it
    value: float | None  # what was compared with the threshold
    threshold: float  # in the figure's unit, or a share
    outcome: Literal["passed", "failed", "cannot tell"]  # of holding it
    why: str | None = None  # why it cannot be told, or failed without being compared


def parse_gate(text: str) -> Gate:
    """Read a `--fail-if` condition."""
    match = _GATE.match(text)
    if match is None or match["unit"] not in _UNITS:
        raise UsageError(
            f"--fail-if {text!r} is not NAME > THRESHOLD",
            "for example 'step_p50 > +5%', 'memory.peak > +2%', 'stage.rpn > 3ms', 'accuracy.AP50 < -0.01'",
        )
    kind, dot, rest = match["name"].partition(".")
    if not any(known.partition(".")[:2] == (kind, dot) for known in GATE_NAMES) or (dot and not rest):
        raise UsageError(
            f"--fail-if {text!r}: no figure is called {match['name']!r}", f"known: {', '.join(GATE_NAMES)}"
        )
    percent, signed = match["unit"] == "%", bool(match["sign"])
    if percent and not signed:
        raise UsageError(f"--fail-if {text!r}: a percentage is a change and needs a sign", "for example +5%")
    threshold = float(match["value"]) * _UNITS[match["unit"]] * (-1 if match["sign"] == "-" else 1)
    return Gate(text.strip(), match["name"], match["op"], threshold, percent, signed)


def judge_gate(gate: Gate, figures: Mapping[str, Change]) -> GateResult:
    """Hold one gate against the figures of a comparison: failed, passed or cannot tell."""
    figure = figures.get(gate.name)
    value = None
    if figure is not None:
        value = figure.relative if gate.relative else figure.difference if gate.of_change else figure.after
    outcome: Literal["passed", "failed", "cannot tell"] = "failed"
    why = None
    if figure is None:
        why = f"these runs do not have it; {_list_near(gate.name, figures)}"
    elif value is None:
        why = f"missing: {figure.why or figure.verdict}"
    elif not _COMPARE[gate.operator](value, gate.threshold):
        outcome = "passed"
    elif gate.of_change and not figure.is_seen:
        outcome, why = "cannot tell", "the change cannot be told from noise"
    return GateResult(
        gate=gate.text, figure=gate.name, value=value, threshold=gate.threshold, outcome=outcome, why=why
    )


def _list_near(name: str, figures: Mapping[str, Change]) -> str:
    """What these runs have of the same kind, the nearest first."""
    kind = name.partition(".")[0]
    alike = [known for known in figures if known.partition(".")[0] == kind]
    near = get_close_matches(name, alike, n=4, cutoff=0.5) or sorted(alike)[:4] or list(figures)[:4]
    return f"they have {', '.join(near)}" if near else "they share no figure"
