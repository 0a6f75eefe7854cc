"""What the host was doing: calls that block until the device is done, and the operators around them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from detscope.analyze.device.intervals import Times
from detscope.analyze.device.timeline import event_borders

# calls that return only when the device has done what was asked of it before
BLOCKING = (
    r"^(cuda|hip|cu)(Ctx|Device|Stream|Event|Thread)Synchronize(_v\d+|_ptsz)?$"
    r"|^(cuda|hip)(Free|FreeHost|HostFree|FreeArray)(_v\d+)?$"
    r"|^(cuda|hip|cu)Memcpy(2D|3D|ToSymbol|FromSymbol|HtoD|DtoH|DtoD|WithStream)?(_v\d+|_ptds)?$"
    r"|^ur(EventWait|QueueFinish)$|^ze(Event|Fence|CommandQueue|CommandList)(Host)?Synchronize$"  # of Intel
)
WRAPPERS = ("autograd::engine::", "torch::autograd::")
NAMES = {
    "aten::item": "item",
    "aten::_local_scalar_dense": "item",
    "aten::is_nonzero": "truth value of a tensor",
    "aten::nonzero": "nonzero",
    "torchvision::nms": "nms",
    "aten::equal": "equal",
    "aten::masked_select": "masked_select",
    "aten::unique": "unique",
    "aten::_unique2": "unique",
}
MOVES = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::cpu", "aten::cuda", "aten::xpu")


@dataclass(frozen=True)
class BlockingCalls:
    """Host calls that waited for the device, in order of their start."""

    rows: pl.DataFrame  # of host_events, with `copy`: the direction of the copy it made
    starts: Times
    ends: Times

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True)
class CallPlace:
    """Where in the program a call was made."""

    operator: str | None
    operator_ns: int  # when the operator began
    module: str | None
    annotation: str | None
    stack: str | None


def find_blocking_calls(host: pl.DataFrame, events: pl.DataFrame) -> BlockingCalls:
    """Synchronising runtime calls, and copies whose call lasted until the copy was done."""
    copies = (
        events.filter((pl.col("kind") == "copy") & pl.col("correlation").is_not_null())
        .select(
            "correlation",
            "copy",
            pl.col("module").alias("of_module"),
            (pl.col("start_ns") + pl.col("wall_ns")).alias("done_ns"),
        )
        .unique("correlation", keep="first", maintain_order=True)
    )
    joined = _waiting_or_copying(host, copies).join(
        copies, on="correlation", how="left", maintain_order="left"
    )
    until_done = (pl.col("start_ns") + pl.col("wall_ns") >= pl.col("done_ns")).fill_null(False)
    # a synchronisation after a copy belongs to it: which, the operator around both will tell
    thread = ("process", "thread")
    recent = joined.with_columns(
        until_done.alias("until_done"),
        pl.when(pl.col("copy").is_not_null()).then("start_ns").forward_fill().over(thread).alias("copy_ns"),
        pl.col("copy").forward_fill().over(thread),
        pl.col("of_module").forward_fill().over(thread),
    )
    chosen = recent.filter(pl.col("waits") | pl.col("until_done")).drop("waits")
    outermost = _drop_inner(chosen)
    return BlockingCalls(outermost, *event_borders(outermost))


def _waiting_or_copying(host: pl.DataFrame, copies: pl.DataFrame) -> pl.DataFrame:
    """Runtime calls that wait by their name, or queued a copy, in order; of all calls they are few."""
    columns = ("kind", "process", "thread", "name", "start_ns", "wall_ns", "correlation", "stack")
    is_runtime = pl.col("kind") == "runtime"
    names = host.lazy().filter(is_runtime).select(pl.col("name").unique()).collect().to_series()
    waits = pl.col("name").is_in(names.filter(names.str.contains(BLOCKING)).implode())
    copied = pl.col("correlation").is_in(copies["correlation"].implode())
    found = host.lazy().select(columns).filter(is_runtime & (waits | copied)).collect()
    in_order = found.sort("start_ns", -pl.col("wall_ns"), maintain_order=True)
    return in_order.with_columns(waits.fill_null(False).alias("waits"))


def _drop_inner(calls: pl.DataFrame) -> pl.DataFrame:
    """Without the driver calls inside runtime calls, so that the calls of one thread follow each other."""
    end = pl.col("start_ns") + pl.col("wall_ns")
    reach = end.cum_max().shift(1).over("process", "thread")
    return calls.filter((pl.col("start_ns") >= reach).fill_null(True))


def find_places(host: pl.DataFrame, calls: pl.DataFrame) -> list[CallPlace]:
    """For each call: the outermost operator around it, the innermost module, annotation and line of code."""
    found: list[CallPlace] = [CallPlace(None, 0, None, None, None)] * calls.height
    columns = ("kind", "process", "thread", "name", "start_ns", "wall_ns", "stack")
    around = host.select(columns).filter(pl.col("kind").is_in(["operator", "module", "annotation"]))
    numbered = calls.with_row_index("number")
    for (process, thread), own in numbered.group_by("process", "thread"):
        nearby = around.filter(pl.col("process").eq_missing(process) & pl.col("thread").eq_missing(thread))
        for number, place in _place_calls(_with_calls(nearby, own), own).items():
            found[number] = place
    return found


def _with_calls(around: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Only the events inside which one of the calls begins: most have none."""
    starts, ends = event_borders(around)
    begins = np.sort(event_borders(calls)[0])
    inside = np.searchsorted(begins, ends, side="right") > np.searchsorted(begins, starts, side="left")
    return around.filter(pl.Series(inside))


def _place_calls(around: pl.DataFrame, calls: pl.DataFrame) -> dict[int, CallPlace]:
    """One pass over a thread's nested events and the calls in it, outer before inner."""
    starts, ends = event_borders(around)
    call_starts, call_ends = event_borders(calls)
    kinds, names, stacks = (around[column].to_list() for column in ("kind", "name", "stack"))
    order = np.lexsort((-ends, starts))
    numbers, own_stacks = calls["number"].to_list(), calls["stack"].to_list()
    open_events: list[int] = []
    position = 0
    result = {}
    for call in np.argsort(call_starts, kind="stable").tolist():
        while position < len(order) and starts[order[position]] <= call_starts[call]:
            event = int(order[position])
            while open_events and ends[open_events[-1]] <= starts[event]:
                open_events.pop()
            open_events.append(event)
            position += 1
        within = [event for event in open_events if ends[event] >= call_ends[call]]
        result[numbers[call]] = _describe_place(within, kinds, names, starts, stacks, own_stacks[call])
    return result


def _describe_place(
    within: Sequence[int],
    kinds: Sequence[str],
    names: Sequence[str],
    starts: Times,
    stacks: Sequence[str | None],
    own_stack: str | None,
) -> CallPlace:
    operators = [i for i in within if kinds[i] == "operator" and not names[i].startswith(WRAPPERS)]
    modules = [names[i] for i in within if kinds[i] == "module"]
    annotations = [names[i] for i in within if kinds[i] == "annotation"]
    lines = [stacks[i] for i in within if stacks[i]]
    return CallPlace(
        names[operators[0]] if operators else None,
        int(starts[operators[0]]) if operators else 0,
        modules[-1] if modules else None,
        _without_number(annotations[-1]) if annotations else None,
        own_stack or (lines[-1] if lines else None),
    )


def _without_number(annotation: str) -> str:
    """ "iteration 12" and "iteration 13" are one place."""
    return re.sub(r"[\s_#:]*\d+\s*$", "", annotation) or annotation


def name_call(operator: str | None, runtime: str, copy: str | None) -> str:
    """A blocking call as people write it: item, nonzero, nms, to("cpu"), synchronize."""
    if operator is None:
        return "synchronize" if "Synchronize" in runtime else runtime
    if operator in MOVES:
        return 'to("cuda")' if copy == "HtoD" else 'to("cpu")' if copy in ("DtoH", None) else operator
    return NAMES.get(operator, operator)
