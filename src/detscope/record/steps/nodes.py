"""The things a recording can name: phases, modules, methods, functions and regions, each with a number.

The hot path only ever writes numbers; this table gives them their names back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

PHASES = ("data", "transfer", "forward", "backward", "optimizer", "other")


@dataclass(frozen=True)
class Node:
    """One nameable thing. `path` is unique within its kind."""

    number: int
    # "phase", "module", "method", "function", "region"; "part": work beside the model's; "stretch": a part of
    # what a call does itself
    kind: str
    path: str
    type_name: str = ""
    stage: str | None = None
    parameters: int = 0

    def stage_within(self, outer: str | None) -> str | None:
        """The stage while this node runs inside `outer`; a name with a leading dot is a part of that."""
        if self.stage is None:
            return outer
        return (outer or "") + self.stage if self.stage.startswith(".") else self.stage


def find_stage(nodes: Iterable[Node]) -> str | None:
    """The stage of a stack of nodes, outermost first."""
    stage = None
    for node in nodes:
        stage = node.stage_within(stage)
    return stage


class NodeTable:
    """Numbers nodes in the order of their first appearance."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._by_key: dict[tuple[str, str], Node] = {}
        for phase in PHASES:
            self.add_node("phase", phase)

    def add_node(
        self, kind: str, path: str, type_name: str = "", stage: str | None = None, parameters: int = 0
    ) -> Node:
        """The node of this kind and path, made if it is new."""
        key = (kind, path)
        node = self._by_key.get(key)
        if node is None:
            node = Node(len(self._nodes), kind, path, type_name, stage, parameters)
            self._nodes.append(node)
            self._by_key[key] = node
        return node

    def phase_node(self, name: str) -> Node:
        """The node of a phase."""
        return self.add_node("phase", name)

    @property
    def in_order(self) -> list[Node]:
        """The nodes by number, for loops that look up many."""
        return self._nodes

    def __getitem__(self, number: int) -> Node:
        return self._nodes[number]

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)
