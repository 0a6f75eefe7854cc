"""Mixed precision before it is tried: which blocks autocast halves, and which copies it adds."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import polars as pl

from detscope.analyze.memory.blocks import BEFORE, Longs
from detscope.analyze.memory.checkpoint import PLAIN_LAYER, WEIGHTED
from detscope.analyze.memory.replay import Booleans, Replay, added, ending, resized

# Multiplies by single-precision vectors of its own, so that its results are single precision again.
PROMOTES = re.compile(r"Frozen\w*BatchNorm")
KEEPS = re.compile(r"Pool2d|ReLU|SiLU|GELU|Hardswish|Dropout|Upsample")  # results have the input's type
POOLS_REGIONS = re.compile(r"RoIAlign|RoIPool")  # computes in single precision, hands its result on in half
PER_STEP = ("activations", "temporary", "workspace")
# Outside of layers, in losses: what is kept for backward comes from the network's half results.
OF_LOGITS = r"aten::(sigmoid|sigmoid_backward|log_sigmoid|softmax|log_softmax|rsub|pow)$"
POINTWISE = r"aten::(index|add|sub|mul|div|neg|exp|log|stack|cat|reshape|clone|contiguous|permute)$"
IN_FULL = r"binary_cross_entropy"  # autocast to single precision; keeps the copies of its two inputs


def halved(replay: Replay, nodes: pl.DataFrame) -> Replay:
    """The step under autocast to a 16-bit type; parameters, gradients and optimizer state stay."""
    types = module_types(nodes)
    halves = _halving(replay, types)
    replay = _with_input_copy(replay, types)
    replay = _with_loss_copies(_with_full_pooling(replay, types))
    replay = _with_promoted_copies(replay, types)
    replay = resized(replay, np.concatenate([halves, np.zeros(len(replay.size) - len(halves), bool)]), 0.5)
    replay = _with_weight_copies(replay, types)
    return _with_half_gradients(replay, types)


def module_types(nodes: pl.DataFrame) -> dict[str, str]:
    """Type of every module by its path."""
    rows = nodes.filter(pl.col("kind") == "module").select("path", "type").iter_rows()
    return {str(path): str(kind) for path, kind in rows}


def half_paths(types: dict[str, str]) -> set[str]:
    """Modules whose results become half: plain layers, and containers of nothing else."""
    parents = {path.rpartition(".")[0] for path in types if path}
    mixed: set[str] = set()
    for path, kind in types.items():
        if path in parents or (PLAIN_LAYER.search(kind) and not PROMOTES.search(kind)):
            continue
        parts = path.split(".")
        mixed |= {".".join(parts[:depth]) for depth in range(1, len(parts) + 1)} | {""}
    plain = {path for path in types if path and path not in mixed}
    promoted = {path for path, kind in types.items() if PROMOTES.search(kind)}
    return plain - promoted


def _halving(replay: Replay, types: dict[str, str]) -> Booleans:
    full = pl.col("dtype").is_null() | pl.col("dtype").str.ends_with("float32")
    per_step = pl.col("category").is_in(PER_STEP) & pl.col("alloc_ns").is_not_null() & full
    plain = pl.col("module").is_in(sorted(half_paths(types)))
    pooled = pl.col("module").is_in(_pools(types))
    # the positions that max pooling remembers are whole numbers
    indices = pl.col("dtype").is_null() & pl.col("operator").str.contains("max_pool").fill_null(False)
    kept = pl.col("category") == "activations"
    loss = pl.col("operator").str.contains(OF_LOGITS) | (pl.col("operator").str.contains(POINTWISE) & kept)
    elsewhere = loss & ~pl.col("module").is_in(["transform"]) & pl.col("direction").is_not_null()
    halves = replay.where(per_step & (plain | pooled | elsewhere.fill_null(False)) & ~indices)
    return halves & ~_full_again(replay, types)


def _with_loss_copies(replay: Replay) -> Replay:
    """Losses that compute in single precision keep copies of what they read."""
    kept = (pl.col("category") == "activations") & pl.col("operator").str.contains(IN_FULL)
    indices = np.flatnonzero(replay.where(kept) & (replay.begin_ns != BEFORE))
    begins, ends = replay.begin_ns[indices], replay.end_ns[indices]
    return added(replay, replay.row[indices], begins, ends, 2 * replay.size[indices])


def _pools(types: dict[str, str]) -> list[str]:
    return sorted(path for path, kind in types.items() if POOLS_REGIONS.search(kind))


def _with_full_pooling(replay: Replay, types: dict[str, str]) -> Replay:
    """Pooling of regions works on single-precision copies: of its map and result, and backward of both.

    Sizes of the maps are those of their gradients; backward runs through the calls in reverse. A level
    without regions has a gradient and no result: results are taken to be those of the largest maps.
    """
    for path in _pools(types):
        own = pl.col("module") == path
        forward = _in_order(replay, own & (pl.col("operator").str.ends_with("roi_align")))
        backward = _in_order(replay, own & (pl.col("operator").str.ends_with("roi_align_backward")))
        if not len(forward) or len(forward) > len(backward):
            continue
        backward = backward[::-1]
        used = np.sort(np.argsort(-replay.size[backward], kind="stable")[: len(forward)])
        results, maps = replay.size[forward], replay.size[backward]
        begins = replay.begin_ns[forward]
        replay = added(replay, replay.row[forward], begins, begins + 1, maps[used] + results - results // 2)
        full = maps - maps // 2
        full[used] += results
        begins = replay.begin_ns[backward]
        replay = added(replay, replay.row[backward], begins, begins + 1, full)
    return replay


def _in_order(replay: Replay, condition: pl.Expr) -> Longs:
    """Lives of this step's blocks that fulfil a condition, in order of time."""
    found = np.flatnonzero(replay.where(condition) & replay.original & (replay.begin_ns != BEFORE))
    return found[np.argsort(replay.begin_ns[found], kind="stable")]


def _weighted(types: dict[str, str]) -> list[str]:
    return sorted(path for path, kind in types.items() if WEIGHTED.search(kind))


def _with_weight_copies(replay: Replay, types: dict[str, str]) -> Replay:
    """Weights of convolutions and linear layers are cast once and kept until their layer's backward."""
    paths = _weighted(types)
    weights = replay.where((pl.col("category") == "parameters") & pl.col("owner").is_in(paths))
    spans = _busy(replay)
    rows, begins, ends, sizes = [], [], [], []
    for index in np.flatnonzero(weights):
        busy = spans.get(str(replay.about["owner"][int(replay.row[index])]))
        if busy is not None:
            rows.append(replay.row[index])
            begins.append(busy[0])
            ends.append(busy[1] + 1)
            sizes.append(replay.size[index] // 2)
    return _added(replay, rows, begins, ends, sizes)


def _with_half_gradients(replay: Replay, types: dict[str, str]) -> Replay:
    """A weight's gradient is made in half and cast: for a moment both are there."""
    made = replay.where((pl.col("category") == "gradients") & pl.col("owner").is_in(_weighted(types)))
    indices = np.flatnonzero(made & (replay.begin_ns != BEFORE))
    begins = replay.begin_ns[indices]
    return added(replay, replay.row[indices], begins - 1, begins + 1, replay.size[indices] // 2)


def _with_input_copy(replay: Replay, types: dict[str, str]) -> Replay:
    """The first layer keeps a half copy of the batch; the batch itself goes when forward ends."""
    spans = _busy(replay)
    layers = [(spans[path], path) for path in _weighted(types) if path in spans]
    if not layers:
        return replay
    (begin_ns, end_ns), _ = min(layers)
    forward = replay.where(pl.col("direction") == "backward") & (replay.begin_ns != BEFORE)
    turn_ns = int(replay.begin_ns[forward].min()) if forward.any() else end_ns
    # what is alive across the first layer's whole life and was made before it: the batch it reads
    kept = replay.where(pl.col("category").is_in(["activations", "inputs"]))
    spanning = np.flatnonzero(kept & (replay.begin_ns < begin_ns) & (replay.end_ns > turn_ns))
    spanning = spanning[replay.begin_ns[spanning] != BEFORE]
    if not len(spanning):
        return replay
    batch = int(spanning[np.argmax(replay.size[spanning])])
    chosen = np.zeros(len(replay.size), dtype=bool)
    chosen[batch] = True
    end_of_batch = int(replay.end_ns[batch])
    replay = ending(replay, chosen, min(turn_ns, end_of_batch))
    return _added(replay, [replay.row[batch]], [begin_ns - 1], [end_of_batch], [replay.size[batch] // 2])


def _large_kept(replay: Replay) -> Longs:
    """Activations in order of time, without statistics, which are nobody's input."""
    kept = _in_order(replay, (pl.col("category") == "activations") & (pl.col("direction") == "forward"))
    return np.asarray(kept[replay.size[kept] * 64 >= replay.size[kept].max(initial=0)])


def _full_again(replay: Replay, types: dict[str, str]) -> Booleans:
    """Blocks of layers that promote, and of layers right after them that keep the type of what they read."""
    found = replay.where(pl.col("module").is_in([p for p, kind in types.items() if PROMOTES.search(kind)]))
    if not found.any():
        return found
    keeping = replay.where(pl.col("module").is_in([p for p, kind in types.items() if KEEPS.search(kind)]))
    order = _large_kept(replay)
    for before, index in pairwise(order):
        found[index] |= keeping[index] & found[before]
    return found


def _with_promoted_copies(replay: Replay, types: dict[str, str]) -> Replay:
    """A layer that reads single precision again keeps a half copy of its own."""
    promoted = _full_again(replay, types)
    if not promoted.any():
        return replay
    large = _large_kept(replay)
    spans = _busy(replay)
    rows, begins, ends, sizes = [], [], [], []
    for path in _weighted(types):
        before = np.searchsorted(replay.begin_ns[large], spans[path][0]) - 1 if path in spans else -1
        if before >= 0 and promoted[large[before]]:
            rows.append(replay.row[large[before]])
            begins.append(spans[path][0] - 1)
            ends.append(spans[path][1] + 1)
            sizes.append(replay.size[large[before]] // 2)
    return _added(replay, rows, begins, ends, sizes)


def _busy(replay: Replay) -> dict[str, tuple[int, int]]:
    """First and last allocation of every module in the step."""
    frame = pl.DataFrame({"module": replay.column("module"), "begin": replay.begin_ns})
    grouped = (
        frame.filter(pl.col("begin") >= replay.start_ns)
        .drop_nulls("module")
        .group_by("module")
        .agg(pl.col("begin").min().alias("first"), pl.col("begin").max().alias("last"))
    )
    return {module: (int(first), int(last)) for module, first, last in grouped.iter_rows()}


def _added(replay: Replay, rows: list[int], begins: list[int], ends: list[int], sizes: list[int]) -> Replay:
    arrays = [np.asarray(values, dtype=np.int64) for values in (rows, begins, ends, sizes)]
    return added(replay, arrays[0], arrays[1], arrays[2], arrays[3])
