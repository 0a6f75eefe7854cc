"""Measured steps beside the layer graphs of their networks: what models are fitted on and scored with."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from detscope.errors import InputError
from detscope.limits import read_csv_rows
from detscope.predict.layers.graph import LayerGraph

Array = npt.NDArray[np.float64]
MIB = 1 << 20
TARGETS = ("allocated_bytes", "reserved_bytes", "process_bytes", "latency_ms")
_COLUMNS = {  # ours <- theirs, factor
    "allocated_bytes": ("mem_alloc", MIB),
    "reserved_bytes": ("mem_reserved", MIB),
    "process_bytes": ("mem_used", MIB),
    "latency_ms": ("latency", 1),
    "latency_low_ms": ("latency_low", 1),
    "latency_high_ms": ("latency_high", 1),
}


@dataclass(frozen=True)
class StepCase:
    """What is asked about: a network at a batch size, trained with an optimizer."""

    graph: LayerGraph
    batch: int
    optimizer: str = "sgd"


@dataclass(frozen=True)
class StepSample:
    """A case and what was measured; None where a figure was not."""

    case: StepCase
    network: str
    level: int
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    process_bytes: float | None = None
    latency_ms: float | None = None
    passed: bool = True
    device: str = ""  # where it was measured, if that is known
    latency_low_ms: float | None = None  # the 95 % interval of the median that latency_ms is
    latency_high_ms: float | None = None

    def get_value(self, target: str) -> float | None:
        """The figure of one of TARGETS."""
        found: float | None = getattr(self, target)
        return found


def keep_measured(samples: Sequence[StepSample], target: str) -> list[StepSample]:
    """The samples that ran and in which the target was measured."""
    return [one for one in samples if one.passed and one.get_value(target) is not None]


def choose_spread(samples: Sequence[StepSample], count: int) -> list[StepSample]:
    """`count` of them, spread over batch sizes from the smallest to the largest."""
    ordered = sorted(samples, key=lambda one: one.case.batch)
    places = np.unique(np.linspace(0, len(ordered) - 1, count).round().astype(int))
    return [ordered[place] for place in places]


def read_samples(path: Path, graphs: Mapping[tuple[str, int], LayerGraph]) -> list[StepSample]:
    """Rows of an older CSV (`,` or `|`) whose network and level have a layer graph; others are left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}", "give a CSV of measured steps") from error
    rows = read_csv_rows(path, text.splitlines(), "|" if "|" in text.partition("\n")[0] else ",")
    found = []
    for number, row in enumerate(rows, 2):
        try:
            network = row.get("net_name") or row["net"]
            level = int(row.get("level") or row.get("prune_level") or row["test_var"])
            graph = graphs.get((network, level))
            if graph is None:
                continue
            batch = int(row["bs"])
            if batch < 1:
                raise ValueError(f"batch {batch}")
            values = {
                ours: float(row[theirs]) * factor if row.get(theirs) else None
                for ours, (theirs, factor) in _COLUMNS.items()
            }
            passed = row.get("passed", "True").strip().lower() in ("true", "1")
            device = (row.get("device") or "").strip()
            wrong = [value for value in values.values() if value is not None and not 0 <= value < math.inf]
            if passed and wrong:
                raise ValueError(f"{wrong[0]} was never measured")
            case = StepCase(graph, batch)
            found.append(StepSample(case, network, level, passed=passed, device=device, **values))
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(
                f"{path}, line {number}: {error!r:.80} is missing or no number", "see docs/predict.md"
            ) from error
    if not found:
        raise InputError(f"{path} has no row whose network has a layer graph", "see docs/predict.md")
    return found


def sum_samples(samples: Sequence[StepSample]) -> str:
    """A short sum of what a model was fitted on."""
    digest = hashlib.sha256()
    for one in samples:
        figures = [one.get_value(target) for target in TARGETS]
        digest.update(repr((one.network, one.level, one.case.batch, figures)).encode())
    return digest.hexdigest()[:16]
