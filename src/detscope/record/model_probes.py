"""All probes of one model: which modules, methods and functions, their stages and observers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import nn

from detscope.record.borders import BorderScribe
from detscope.record.nodes import Node, NodeTable
from detscope.record.probes import (
    Attachments,
    count_parameters,
    resolve_target,
    select_modules,
)


class StageLike(Protocol):
    """A stage as the zoo names it."""

    @property
    def name(self) -> str: ...
    @property
    def target(self) -> str: ...


class ObserverLike(Protocol):
    """A reader of counts as the zoo gives it."""

    @property
    def target(self) -> str: ...
    @property
    def read(self) -> Callable[[Any], Mapping[str, int]]: ...


class ModelProbes:
    """Attaches and detaches as often as the schedule wants; leaves nothing behind."""

    def __init__(
        self,
        root: nn.Module,
        nodes: NodeTable,
        scribe: BorderScribe,
        which: str,
        stages: Sequence[StageLike],
        observers: Sequence[ObserverLike],
        count: Callable[[str, int], None],
        note: Callable[[str], None],
    ) -> None:
        self._scribe = scribe
        self._count = count
        self._note = note
        self._probing = Attachments()
        self._observing = Attachments()
        stage_of = {stage.target: stage.name for stage in stages}
        self._modules = self._module_nodes(root, nodes, which, stage_of)
        self._calls = self._call_nodes(root, nodes, stages)
        self._observers = [(resolve_target(root, observer.target), observer) for observer in observers]

    @staticmethod
    def _module_nodes(
        root: nn.Module, nodes: NodeTable, which: str, stage_of: dict[str, str]
    ) -> list[tuple[nn.Module, Node]]:
        selected = dict(select_modules(root, which))
        for target in stage_of:  # a stage is recorded whatever --modules says
            if ":" not in target and not target.endswith("()"):
                selected.setdefault(target, root.get_submodule(target))
        parameters = count_parameters(list(selected.items()))
        return [
            (module, nodes.add("module", path, type(module).__name__, stage_of.get(path), parameters[path]))
            for path, module in selected.items()
        ]

    @staticmethod
    def _call_nodes(
        root: nn.Module, nodes: NodeTable, stages: Sequence[StageLike]
    ) -> list[tuple[Any, str, Node]]:
        calls = []
        for stage in stages:
            kind, owner, name = resolve_target(root, stage.target)
            if kind != "module":
                path = stage.target if kind == "method" else f"{name}()"
                calls.append((owner, name, nodes.add(kind, path, kind, stage.name)))
        return calls

    @property
    def modules(self) -> list[nn.Module]:
        """Those that are recorded."""
        return [module for module, _ in self._modules]

    def attach(self, modules: bool) -> None:
        """Put the readers of counts on and, if wanted, all other probes."""
        if modules:
            if not len(self._probing):
                self._make_probes()
            self._probing.resume()
        if not len(self._observing):
            self._make_observers()
        self._observing.resume()

    def detach(self) -> None:
        """Take all probes off, last first."""
        self._observing.suspend()
        self._probing.suspend()
        self._scribe.reset()

    def remove(self) -> None:
        """Take all probes off for good."""
        self._observing.remove()
        self._probing.remove()
        self._scribe.reset()

    def _make_probes(self) -> None:
        self._probing.modules(((module, node.number) for module, node in self._modules), self._scribe)
        for owner, name, node in self._calls:
            self._probing.method(owner, name, *self._scribe.pair(node.number))

    def _make_observers(self) -> None:
        for (kind, owner, name), observer in self._observers:
            read = self._reader(observer)
            if kind == "module":
                self._observing.output(owner, read)
            else:
                self._observing.method(owner, name, lambda _owner, _args: None, read)

    def _reader(self, observer: ObserverLike) -> Callable[[Any, Any, Any], None]:
        def read(_target: Any, _args: Any, output: Any) -> None:
            if output is None:  # the target raised
                return
            try:
                for name, value in observer.read(output).items():
                    self._count(name, value)
            except Exception as error:  # an observer must never break the code under measurement
                self._note(f"cannot tell counts of {observer.target}: {type(error).__name__}: {error}")

        return read
