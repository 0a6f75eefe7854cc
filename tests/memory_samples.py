"""A hand-made run whose every byte is known: two measured steps of a two-block network, times in us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detscope.runs.reader import Run, load_run
from detscope.runs.schema import TABLES
from detscope.runs.writer import RunWriter

STEP_US = 1000
BATCH = 2


def block(
    size: int,
    begin: int | None = None,
    end: int | None = None,
    *,
    category: str = "temporary",
    module: str | None = None,
    direction: str | None = "forward",
    phase: str | None = None,
    step: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A row of `memory`; begin and end in us from the run's begin."""
    begin_step = None if begin is None else begin // STEP_US if step is None else step
    return {
        "block": 0,
        "device": "cpu",
        "bytes": size,
        "alloc_ns": None if begin is None else begin * 1000,
        "free_ns": None if end is None else end * 1000,
        "step": begin_step,
        "phase": phase or (direction if begin is not None else None),
        "free_step": None if end is None else end // STEP_US,
        "free_phase": None if end is None else "backward" if end % STEP_US >= 500 else "forward",
        "direction": direction if begin is not None else None,
        "module": module,
        "category": category,
        "dtype": "float32",
        **more,
    }


def state() -> list[dict[str, Any]]:
    """Parameters, gradients of the step before and momentum of three layers: 100, 200 and 400 bytes."""
    rows = []
    for name, size in (("body.0.conv1", 100), ("body.0.conv2", 200), ("head", 400)):
        rows.append(block(size, category="parameters", name=f"{name}.weight"))
        rows.append(block(size, category="optimizer", name=f"{name}.weight"))
        rows.append(block(size, None, 500, category="gradients", name=f"{name}.weight"))
    return rows


def a_step(step: int) -> list[dict[str, Any]]:
    """Forward from 100, backward from 500 us; the peak is at 460 us."""
    at = step * STEP_US
    kept = {
        "category": "activations",
        "stage": "body",
        "operator": "aten::conv2d",
        "shape": "2x8",
        "step": step,
    }
    rows = [
        block(
            1000, at + 50, at + 900, category="inputs", name="images", direction="forward", phase="transfer"
        ),
        block(2000, at + 110, at + 820, module="body.0.conv1", **kept),
        block(2000, at + 120, at + 810, module="body.0.relu", **kept),
        block(2000, at + 130, at + 800, module="body.0.conv2", **kept),
        block(500, at + 400, at + 640, module="head", **{**kept, "stage": "head"}),
        block(300, at + 460, at + 480, module="head", operator="aten::softmax", stage="head"),
        block(500, at + 600, at + 700, module="head", direction="backward"),
        block(2000, at + 650, at + 805, module="body.0.conv2", direction="backward"),
    ]
    for name, size, begin in (("head", 400, 620), ("body.0.conv2", 200, 660), ("body.0.conv1", 100, 815)):
        end = at + STEP_US + 500 if step == 0 else None
        extra = {"category": "gradients", "name": f"{name}.weight", "direction": "backward"}
        rows.append(block(size, at + begin, end, module=name, **extra))
    return rows


STEP_PEAK = 3 * 700 + 1000 + 6000 + 500 + 300


def write_run(
    folder: Path,
    blocks: list[dict[str, Any]],
    *,
    steps: int = 2,
    status: str = "ok",
    info: dict[str, Any] | None = None,
    tables: dict[str, list[tuple[Any, ...]]] | None = None,
) -> Run:
    """Write rows as a run and open it."""
    settings = {"training": {"optimizer": "sgd", "momentum": 0.9, "precision": "fp32", "batch_size": BATCH}}
    about = {"device": "cpu", "batch_size": BATCH, "precision": "fp32", "settings": settings, **(info or {})}
    writer = RunWriter(folder, "train", "made", about, "[model]\n")
    writer.append_rows("memory", [tuple(row.get(column) for column in TABLES["memory"]) for row in blocks])
    for step in range(steps):
        start_ns, wall_ns = step * STEP_US * 1000, (STEP_US - 1) * 1000
        names = ("step", "data", "forward", "backward", "optimizer")
        writer.append_rows("steps", [(step, 0, "recorded", name, start_ns, wall_ns, None) for name in names])
        paths = {"body.0": 4.0, "body.0.conv1": 1.0, "body.0.relu": 1.0, "body.0.conv2": 2.0, "head": 3.0}
        for path, ms in paths.items():
            row = (step, "module", path, "forward", 1, int(ms * 1e6), int(ms * 1e6), None, None)
            writer.append_rows("spans", [row])
    kinds = {
        "": "Net",
        "body": "Sequential",
        "body.0": "Block",
        "body.0.conv1": "Conv2d",
        "body.0.relu": "ReLU",
        "body.0.conv2": "Conv2d",
        "head": "Linear",
    }
    writer.append_rows(
        "nodes",
        [("module", path, kind, path.split(".")[0] or None, 0) for path, kind in kinds.items()],
    )
    for table, rows in (tables or {}).items():
        writer.append_rows(table, rows)
    writer.close_run(status)
    return load_run(writer.folder)


def made_run(folder: Path, **more: Any) -> Run:
    """The hand-made run."""
    return write_run(folder, [*state(), *a_step(0), *a_step(1)], **more)
