"""Activation checkpointing before it is tried: which blocks of the network, and what the peak would be."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import polars as pl

from detscope.analyze.memory.replay import (
    Booleans,
    Replay,
    added,
    delayed,
    ending,
    forward_ends,
    of_module,
    peak_of,
)

# Layers without choices of their own: run twice they do the same (random masks are repeated by torch).
PLAIN_LAYER = re.compile(
    r"Conv|BatchNorm|GroupNorm|LayerNorm|InstanceNorm|ReLU|SiLU|GELU|Swish|Mish|Hardswish|Hardsigmoid|Sigmoid"
    r"|Tanh|Softmax|Pool|Dropout|Linear|Identity|Upsample|DropPath|Flatten|Interpolate"
)
WEIGHTED = re.compile(r"Conv\w*d|Conv2d|Linear")
MOST_BLOCKS = 24
GOOD_ENOUGH = 0.1  # of the saving: a shorter list is preferred to one that saves this little more


@dataclass(frozen=True)
class Candidate:
    """A part of the network that could be computed again in backward."""

    path: str
    held_bytes: int
    forward_ms: float | None


@dataclass(frozen=True)
class CheckpointPlan:
    """Which parts, and what the replay says of them."""

    paths: tuple[str, ...]
    peak_bytes: int
    recomputed_ms: float | None


def plan_checkpoints(replay: Replay, nodes: pl.DataFrame, spans: pl.DataFrame) -> CheckpointPlan | None:
    """The parts that hold most per recomputed millisecond, as many as still lower the peak."""
    ranked = rank(candidates(replay, nodes, spans))[:MOST_BLOCKS]
    plans: list[CheckpointPlan] = []
    changed = replay
    for count in range(1, len(ranked) + 1):
        chosen = ranked[:count]
        paths = tuple(item.path for item in chosen)
        changed = checkpointed(changed, paths[-1:])
        known = [item.forward_ms for item in chosen if item.forward_ms is not None]
        recomputed = sum(known) if len(known) == count else None
        plans.append(CheckpointPlan(paths, peak_of(changed), recomputed))
    if not plans:
        return None
    whole = peak_of(replay)
    lowest = min(plan.peak_bytes for plan in plans)
    if lowest >= whole:
        return None
    enough = lowest + GOOD_ENOUGH * (whole - lowest)
    return next(plan for plan in plans if plan.peak_bytes <= enough)


def rank(found: list[Candidate]) -> list[Candidate]:
    """Most bytes per millisecond first; without times, most bytes first."""
    if all(item.forward_ms for item in found):
        return sorted(found, key=lambda item: -item.held_bytes / (item.forward_ms or 1.0))
    return sorted(found, key=lambda item: -item.held_bytes)


def candidates(replay: Replay, nodes: pl.DataFrame, spans: pl.DataFrame) -> list[Candidate]:
    """The smallest parts with two weighted layers and nothing but plain layers inside, run once a step."""
    calls, times = _forward(spans)
    found = []
    for path in plain_parts(nodes):
        held = replay.where(of_module(path) & _kept())
        held_bytes = int(replay.size[held].sum())
        runs_once = calls.get(path) == 1.0 if calls else True  # a list of modules never runs itself
        if held_bytes and runs_once:
            output = int(replay.size[_output(replay, held)].sum())
            found.append(Candidate(path, held_bytes - output, times.get(path)))
    return [item for item in found if item.held_bytes > 0]


def plain_parts(nodes: pl.DataFrame) -> list[str]:
    """Paths of the parts that could be checkpointed, by the types of their layers alone."""
    modules = nodes.filter(pl.col("kind") == "module").select("path", "type").iter_rows()
    types = {str(path): str(kind) for path, kind in modules if path}
    parents = {path.rpartition(".")[0] for path in types}
    leaves = [path for path in types if path not in parents]
    weighted: dict[str, int] = {}
    special: set[str] = set()
    for leaf in leaves:
        parts = leaf.split(".")
        for depth in range(1, len(parts)):
            above = ".".join(parts[:depth])
            weighted[above] = weighted.get(above, 0) + bool(WEIGHTED.search(types[leaf]))
            if not PLAIN_LAYER.search(types[leaf]):
                special.add(above)
    plain = [path for path, count in weighted.items() if count >= 2 and path not in special and path in types]
    return sorted(path for path in plain if not any(other.startswith(f"{path}.") for other in plain))


def _forward(spans: pl.DataFrame) -> tuple[dict[str, float], dict[str, float]]:
    """Calls and ms per step in forward, by module."""
    chosen = spans.filter((pl.col("kind") == "module") & (pl.col("direction") == "forward"))
    steps = max(1, chosen["step"].n_unique())
    grouped = chosen.group_by("path").agg(pl.col("calls").sum(), pl.col("total_ns").sum())
    rows = list(grouped.iter_rows())
    return {path: calls / steps for path, calls, _ in rows}, {path: ns / steps / 1e6 for path, _, ns in rows}


def _kept() -> pl.Expr:
    return (pl.col("category") == "activations") & (pl.col("direction") == "forward")


def _output(replay: Replay, kept: Booleans) -> Booleans:
    """The part's result, which the next part needs: the last kept block that is not a small statistic."""
    chosen = np.flatnonzero(kept)
    result = np.zeros_like(kept)
    if len(chosen):
        large = chosen[replay.size[chosen] * 8 >= replay.size[chosen].max()]
        result[large[np.argmax(replay.begin_ns[large])]] = True
    return result


def checkpointed(replay: Replay, paths: tuple[str, ...]) -> Replay:
    """The step with parts computed again in backward: lives end in forward and begin again there."""
    for path in paths:
        replay = _checkpoint(replay, path)
    return replay


def _checkpoint(replay: Replay, path: str) -> Replay:
    mine = replay.where(of_module(path)) & replay.original & (replay.begin_ns > replay.start_ns)
    inside = mine & replay.where(pl.col("direction") == "forward")
    backward = mine & replay.where(pl.col("direction") == "backward")
    kept = inside & replay.where(pl.col("category") == "activations")
    if not kept.any():
        return replay
    began = int(replay.begin_ns[inside].min())
    ended = int(replay.begin_ns[inside].max())
    again = int(replay.begin_ns[backward].min()) if backward.any() else int(replay.end_ns[kept].min())
    took = ended - began + 1
    output = _output(replay, kept)
    released = forward_ends(replay, kept & ~output)
    copies = np.flatnonzero(inside & ~(output & (replay.end_ns < again)))
    begins = again + replay.begin_ns[copies] - began
    # what the part itself frees goes as soon as before; what backward needs stays until it was needed
    ends = np.where(
        kept[copies] & (replay.end_ns[copies] >= again),
        np.where(
            replay.end_ns[copies] == np.iinfo(np.int64).max,
            replay.end_ns[copies],
            replay.end_ns[copies] + took,
        ),
        again + np.minimum(replay.end_ns[copies], ended + 1) - began,
    )
    rows, sizes = replay.row[copies], replay.size[copies]
    replay = ending(replay, kept & ~output, released)
    replay = ending(replay, output, np.minimum(replay.end_ns, again))
    return added(delayed(replay, again, took), rows, begins, ends, sizes)
