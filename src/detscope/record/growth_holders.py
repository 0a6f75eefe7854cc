"""Whose variable a container is, and the line that makes it longer."""

from __future__ import annotations

import ast
import gc
import inspect
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

_OWN = str(Path(__file__).parents[1])
_GROWING = {"append", "appendleft", "extend", "insert", "add", "update", "setdefault"}
_CONTAINERS = (list, dict, tuple, set, deque)
_DEPTH = 3  # containers in containers that are followed
_MOST_ITEMS = 64
_MOST_GRAPHS = 32  # tensors alive between two steps that are looked at
_MOST_NODES = 200_000  # of one graph that are counted
GRAPH = "graph"
_OPTIMIZED = inspect.CO_OPTIMIZED  # variables of such code live outside of a dictionary


@dataclass(frozen=True)
class Holder:
    """A variable or attribute that keeps more each step."""

    name: str
    kind: str  # of what it keeps: "tensors", "bytes", ...
    items: int  # more per step
    bytes: int  # of these, as far as they are seen from Python
    keeps_graphs: bool
    line: str | None  # file:line where it is made longer


@dataclass
class Added:
    """What came into a container."""

    bytes: int = 0
    graphs: bool = False
    kind: str = "objects"


def added_bytes(container: Any, items: int) -> Added:
    """Of the last items; the order of a set is anybody's guess."""
    values = container.values() if isinstance(container, dict) else container
    last: Iterator[Any] = iter(values)
    if not isinstance(container, set):
        last = reversed(values) if hasattr(values, "__reversed__") else last
    added = Added()
    for item in islice(last, min(items, _MOST_ITEMS)):
        _weigh(item, added, _DEPTH)
        if added.kind == "objects":
            added.kind = "tensors" if isinstance(item, torch.Tensor) else type(item).__name__
    return added


def _weigh(item: Any, added: Added, depth: int) -> None:
    if isinstance(item, torch.Tensor):
        added.graphs = added.graphs or item.grad_fn is not None
        if item.layout is torch.strided and item.device.type != "meta":
            added.bytes += item.untyped_storage().nbytes()
    elif type(item) in _CONTAINERS and depth:
        inner = item.values() if isinstance(item, dict) else item
        for one in islice(inner, _MOST_ITEMS):
            _weigh(one, added, depth - 1)
    elif isinstance(getattr(item, "nbytes", None), int):
        added.bytes += item.nbytes
    else:
        added.bytes += sys.getsizeof(item, 0)


def find_holder(container: Any, frame: FrameType | None, items: int, added: Added) -> Holder | None:
    """The variable of a running function, of a module, or the attribute through which it is kept."""
    frames = _script_frames(frame)
    level = [container]
    for _ in range(_DEPTH):
        for one in level:
            place = _in_frames(one, frames) or _in_modules(one) or _in_instances(one)
            if place is not None:
                return Holder(place[0], added.kind, items, added.bytes, added.graphs, _line_of(place))
        above = [one for part in level for one in gc.get_referrers(part) if type(one) in _CONTAINERS]
        level = [one for one in above if one is not level][:_MOST_ITEMS]
    return None


Place = tuple[str, str, int, int]  # name, file, first and last line in which it can be used


def graph_sizes(frame: FrameType | None) -> dict[Place, int]:
    """Variables and attributes that keep a tensor with its graph, and how many nodes that graph has."""
    frames, found = _script_frames(frame), {}
    # plain tensors alone: others answer by code of their own
    kept = [one for one in gc.get_objects() if type(one) is torch.Tensor]
    for one in [one for one in kept if one.grad_fn is not None][:_MOST_GRAPHS]:
        place = _in_frames(one, frames) or _in_modules(one) or _in_instances(one)
        if place is not None:
            found[place] = _count_nodes(one.grad_fn)
    return found


def _count_nodes(node: Any) -> int:
    seen, waiting = {node}, [node]
    while waiting and len(seen) < _MOST_NODES:
        for following, _ in waiting.pop().next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return len(seen)


def find_graph_holder(
    first: dict[Place, int], second: dict[Place, int], third: dict[Place, int]
) -> Holder | None:
    """Of the graphs that grew between three neighbouring steps, the one that grew by most."""
    grown = {
        place: (size - first[place]) // 2
        for place, size in third.items()
        if place in first and first[place] < second.get(place, 0) < size
    }
    if not grown:
        return None
    place = max(grown, key=lambda one: grown[one])
    return Holder(place[0], GRAPH, grown[place], 0, True, _line_of(place))


def _line_of(place: Place) -> str | None:
    name, file, first, last = place
    return growing_line(file, name.rpartition(".")[2], first, last)


def _script_frames(frame: FrameType | None) -> list[FrameType]:
    frames = []
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OWN):
            frames.append(frame)
        frame = frame.f_back
    return frames


def _in_frames(value: Any, frames: list[FrameType]) -> Place | None:
    if sys.gettrace() is not None:  # a debugger may write back what is read here
        return None
    for frame in frames:
        code = frame.f_code
        if not code.co_flags & _OPTIMIZED:
            continue
        variables = frame.f_locals
        name = next((name for name, one in variables.items() if one is value), None)
        if type(variables) is dict:
            variables.clear()  # a copy that the frame would keep, and with it what is in it
        if name is not None:
            last = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
            return name, code.co_filename, code.co_firstlineno, last
    return None


def _in_modules(value: Any) -> Place | None:
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType) or module.__name__.startswith("detscope"):
            continue
        for name, one in list(vars(module).items()):
            if one is value:
                return name, getattr(module, "__file__", None) or "", 0, sys.maxsize
    return None


def _in_instances(value: Any) -> Place | None:
    for owner in gc.get_referrers(value):
        if type(owner) is dict:
            holders = [one for one in gc.get_referrers(owner) if getattr(one, "__dict__", None) is owner]
        else:
            holders = [owner]
        for holder in holders:
            kind = type(holder)
            if isinstance(holder, (ModuleType, FrameType, *_CONTAINERS)) or _is_ours(kind):
                continue
            attributes: Mapping[str, Any] = getattr(holder, "__dict__", None) or {}
            name = next((name for name, one in attributes.items() if one is value), None)
            if name is not None:
                file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
                return f"{kind.__name__}.{name}", file, 0, sys.maxsize
    return None


def _is_ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "detscope"


def growing_line(file: str, name: str, first: int = 0, last: int = sys.maxsize) -> str | None:
    """Where the source makes a variable or attribute longer, as file:line; up to three places."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    nodes = (node for node in ast.walk(tree) if isinstance(node, (ast.expr, ast.stmt)))
    lines = sorted({node.lineno for node in nodes if _makes_longer(node, name)})
    inside = [line for line in lines if first <= line <= last]
    short = Path(file).name
    return ", ".join(f"{short}:{line}" for line in inside[:3]) or None


def _makes_longer(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _GROWING and _root(node.func.value) == name
    if isinstance(node, ast.AugAssign):
        return _root(node.target) == name
    if isinstance(node, ast.Assign):
        targets = [target for target in node.targets if _root(target) == name]
        again = any(_root(part) == name for part in ast.walk(node.value))  # total = total + loss
        return any(isinstance(target, ast.Subscript) for target in targets) or bool(targets and again)
    return False


def _root(node: ast.AST) -> str | None:
    """The variable or attribute that an expression goes through: `history` of `self.history[key]`."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else node.func
        if isinstance(node, ast.Attribute) and node.attr in (*_GROWING, "get"):
            node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None
