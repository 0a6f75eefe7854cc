"""What a few forward passes allocate and free, by stage, module and operator; by torch's own profiler.

Every allocation and every release of torch's allocator is an event with its bytes. The module
and the operator around it are those whose spans are open at that moment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.profiler import record_function

from detscope.machine.accelerator import find_accelerator
from detscope.machine.profiling import make_session
from detscope.record.model.borders import BorderWriter
from detscope.record.model.probes import ModelProbes
from detscope.record.operators.profiler import no_garbage_collection
from detscope.record.steps.events import SPAN_PREFIX, EventBuffer
from detscope.record.steps.nodes import Node, NodeTable, find_stage
from detscope.zoo.contract import Stage

PASS_NAME = "detscope pass"
MEMORY = "[memory]"
LARGEST = 10
WHAT = (
    "bytes that torch allocated on {device} during a forward pass, above what was there at its beginning;"
    " per pass, without decoding; stages with their parts, modules without those below"
)


@dataclass
class _ByteSums:
    allocated: int = 0
    freed: int = 0
    peak: int = 0

    def describe_pass(self, passes: int) -> dict[str, float]:
        return {
            "peak_bytes": self.peak,
            "allocated_bytes": self.allocated / passes,
            "freed_bytes": self.freed / passes,
        }


@dataclass
class _PassSums:
    """Sums over all passes, and the single allocations of the first."""

    count: int = 0
    peak_at: tuple[str, str, str] = ("", "", "")
    whole: _ByteSums = field(default_factory=_ByteSums)
    stages: dict[str, _ByteSums] = field(default_factory=lambda: defaultdict(_ByteSums))
    modules: dict[str, _ByteSums] = field(default_factory=lambda: defaultdict(_ByteSums))
    single: list[tuple[int, str, str, str]] = field(default_factory=list)


def measure_allocations(
    model: nn.Module,
    passes: Sequence[Callable[[], object]],
    stages: Sequence[Stage],
    modules: str = "all",
    device: str = "cpu",
) -> dict[str, Any]:
    """Run the passes under the profiler and account for their memory; leaves nothing on the model."""
    nodes = NodeTable()
    borders = BorderWriter(EventBuffer())
    probes = ModelProbes(model, nodes, borders, modules, stages, (), lambda *_: None, lambda *_: None)
    for node in nodes:
        borders.find_mark(node.number)  # made now, so that their few bytes are not part of a pass
    probes.attach_modules(modules=True)
    borders.record_functions = True
    try:
        with make_session(find_accelerator(device).activity, profile_memory=True) as session:
            for one_pass in passes:
                with record_function(PASS_NAME):
                    one_pass()
        events = session.profiler.kineto_results.events()
    finally:
        probes.remove_all()
    with no_garbage_collection():
        return _make_figures(_sum_events(events, nodes, device), device)


def _sum_events(events: Sequence[Any], nodes: NodeTable, device: str) -> _PassSums:
    kind = find_accelerator(device).kind.upper()
    wanted = {kind, "HIP"} if kind == "CUDA" else {kind}  # ROCm's may be called either
    host = [event for event in events if event.name() == MEMORY or event.device_type().name == "CPU"]
    found = _PassSums()
    open_spans: list[tuple[int, str]] = []  # end, name; outermost first
    live = 0
    thread: int | None = None
    for event in sorted(host, key=lambda event: (event.start_ns(), -event.duration_ns())):
        name, start_ns = event.name(), event.start_ns()
        if name == PASS_NAME:
            found.count += 1
            live, thread, open_spans = 0, event.start_thread_id(), [(event.end_ns(), name)]
            continue
        while open_spans and open_spans[-1][0] < start_ns:
            open_spans.pop()
        if not open_spans:
            continue
        if name != MEMORY:
            if event.start_thread_id() == thread:
                open_spans.append((event.end_ns(), name))
        elif event.device_type().name in wanted:
            size = event.nbytes()
            live += size
            owners = stage, module, operator = _find_owners([name for _, name in open_spans], nodes)
            if live > found.whole.peak:
                found.peak_at = owners
            parts = stage.split(".") if stage else ["(rest of the model)"]
            around = [found.stages[".".join(parts[: depth + 1])] for depth in range(len(parts))]
            for sums in (found.whole, found.modules[module], *around):
                sums.allocated += max(size, 0)
                sums.freed -= min(size, 0)
                sums.peak = max(sums.peak, live)
            if size > 0 and found.count == 1:
                found.single.append((size, operator, module, stage))
    return found


def _find_owners(names: Sequence[str], nodes: NodeTable) -> tuple[str, str, str]:
    """Stage, module and operator of an open stack: the operator is the outermost below the module."""
    stack: list[Node] = []
    operator = ""
    for name in names[1:]:
        if name.startswith(SPAN_PREFIX):
            stack.append(nodes[int(name.removeprefix(SPAN_PREFIX))])
            operator = ""
        else:
            operator = operator or name
    stage = find_stage(stack) or ""
    module = next((node.path for node in reversed(stack) if node.kind == "module"), "")
    return stage, module or "(model)", operator or "(outside operators)"


def _make_figures(found: _PassSums, device: str) -> dict[str, Any]:
    what, count = WHAT.format(device=device), found.count
    if not count:
        return {"what": what, "passes": 0, "peak_bytes": None, "why": "no pass ran"}
    if not found.whole.allocated and device != "cpu":
        why = f"torch's profiler saw no allocation on {device}"
        return {"what": what, "passes": count, "peak_bytes": None, "why": why}
    largest = sorted(found.single, key=lambda item: -item[0])[:LARGEST]
    modules = sorted(found.modules.items(), key=lambda item: -item[1].allocated)[:LARGEST]
    return {
        "what": what,
        "passes": count,
        "peak_at": dict(zip(("stage", "module", "operator"), found.peak_at, strict=True)),
        **found.whole.describe_pass(count),
        "stages": [
            {"name": name, "depth": name.count("."), **own.describe_pass(count)}
            for name, own in found.stages.items()
        ],
        "modules": [{"path": path, **own.describe_pass(count)} for path, own in modules],
        "largest": [
            {"bytes": size, "operator": operator, "module": module, "stage": stage or None}
            for size, operator, module, stage in largest
        ],
    }
