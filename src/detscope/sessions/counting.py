"""FLOPs and bytes of one pass, and this machine's peak, added to a run that is already safe on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.faults import said_by
from detscope.runs.atomic import write_atomically
from detscope.runs.reader import load_run
from detscope.runs.writer import polars_schema

if TYPE_CHECKING:
    from torch import nn

    from detscope.record.model.probes import StageLike
    from detscope.runs.writer import RunWriter

LONGEST_PASS_MS = 3000.0  # counting runs the pass again and slower; a long one is not worth that


def add_costs(
    writer: RunWriter,
    model: nn.Module,
    one_pass: Callable[[], object],
    stages: Sequence[StageLike],
    *,
    images: int,
    modules: str = "all",
    device: str = "cpu",
) -> None:
    """Count one pass and keep it with the run; a run is never lost for it, what went wrong is said."""
    from detscope.analyze.step.steps import typical_steps

    typical = typical_steps(load_run(writer.folder).table("steps"))
    if modules == "none" or typical.p50_ms is None:
        return
    if typical.p50_ms > LONGEST_PASS_MS:
        _say(
            writer,
            {"why": f"a pass takes {typical.p50_ms / 1e3:.1f} s: too long to be run again for counting"},
        )
        return
    try:
        rows, peak = _count(model, one_pass, stages, modules, device)
    except Exception as error:  # whatever a model does with an unusual mode, its times are already safe
        _say(writer, {"why": f"counting failed: {said_by(error)}"})
        return
    _write(writer.folder, rows)
    _say(writer, {"images": images, "peak": peak})


def _count(
    model: nn.Module, one_pass: Callable[[], object], stages: Sequence[StageLike], modules: str, device: str
) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    import torch

    from detscope.machine.peak import machine_peak
    from detscope.record.counting import count_costs

    costs = count_costs(model, one_pass, stages, modules)
    rows = [
        (c.kind, c.path, c.direction, c.flops, c.self_flops, c.bytes, c.self_bytes)
        for c in costs
        if c.bytes or c.flops
    ]
    return rows, machine_peak(device, torch.get_num_threads())


def _write(folder: Path, rows: list[tuple[Any, ...]]) -> None:
    import polars as pl

    frame = pl.DataFrame(rows, schema=polars_schema("costs"), orient="row")
    write_atomically(folder / "costs.parquet", frame.write_parquet)


def _say(writer: RunWriter, told: dict[str, Any]) -> None:
    writer.info["costs"] = told
    writer.save_info()
