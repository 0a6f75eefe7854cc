"""All probes of one model: which modules, methods and functions, their stages and observers."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import Any

from torch import nn

from detscope.record.foreign import WeakObjects
from detscope.record.model.borders import BorderWriter, Pair
from detscope.record.model.calls import CallListener, CallTarget, ModuleCalls
from detscope.record.model.parts import PartPlan
from detscope.record.steps.events import ENTER, encode_event
from detscope.record.steps.nodes import NodeTable
from detscope.zoo.contract import Observer, Stage
from detscope.zoo.structure import count_parameters, has_children


def resolve_target(root: nn.Module, target: str) -> tuple[str, Any, str]:
    """What a target names: its kind ("module", "method", "function"), its owner, and its path or name.

    The owner of a function is its library, that of a method an object or, for all its objects, a class.
    A module may have any name without a dot, so that it is looked for first.
    """
    with suppress(Exception):  # there is none; a model says so in its own way
        return "module", root.get_submodule(target), target
    if ":" in target:
        library, path = target.split(":", 1)
        owner: Any = sys.modules[library]
        *classes, name = path.split(".")
        for part in classes:
            owner = getattr(owner, part)
        getattr(owner, name)
        return "method" if classes else "function", owner, name
    if target.endswith("()"):
        path, _, name = target[:-2].rpartition(".")
        owner = root.get_submodule(path)
        getattr(owner, name)
        return "method", owner, name
    raise AttributeError(f"{type(root).__name__} has no module {target!r}")


def find_holders(owner: Any, name: str) -> list[Any]:
    """Everybody who holds a function of a library under its name; of other owners, themselves.

    Whoever writes `from library import function` calls it by a name of their own.
    """
    if not isinstance(owner, ModuleType):
        return [owner]
    function = vars(owner).get(name)
    loaded = (one for one in list(sys.modules.values()) if isinstance(one, ModuleType))
    return [
        owner,
        *(one for one in loaded if one is not owner and vars(one).get(name) is function is not None),
    ]


def select_modules(root: nn.Module, which: str) -> list[tuple[str, nn.Module]]:
    """Modules to record by `--modules`: all, leaf, none, or down to a depth; the root is always first."""
    named = [(path, module) for path, module in root.named_modules() if path]
    if which == "leaf":
        named = [(path, module) for path, module in named if not has_children(module)]
    elif which == "none":
        named = []
    elif which != "all":
        depth = int(which)
        named = [(path, module) for path, module in named if path.count(".") < depth]
    return [("", root), *named]


Reader = Callable[[Any], None]
# owner, name, and what to do around calls with and without modules
_Heard = tuple[weakref.ref[Any], str, CallTarget, CallTarget]
# by the id of an owner and a name (modules: none): the owner and who reads its outputs
_Reads = dict[tuple[int, str], tuple[Any, list[Reader]]]


class _ProbeTable:
    """What stand-ins of calls know in one kind of step."""

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self.targets: dict[int, Callable[..., Any]] = {}


class ModelProbes:
    """Says which calls to record, as often as the schedule wants; the model is not touched."""

    def __init__(
        self,
        root: nn.Module,
        nodes: NodeTable,
        borders: BorderWriter,
        which: str,
        stages: Sequence[Stage],
        observers: Sequence[Observer],
        count: Callable[[str, int], None],
        note: Callable[[str], None],
        listener: CallListener | None = None,
        parts: Sequence[tuple[Stage, Pair]] = (),
    ) -> None:
        self._borders = borders
        self._count = count
        self._note = note
        self._root = weakref.ref(root)
        self._listener = listener or CallListener()
        self._module_calls = ModuleCalls(borders, self._listener)
        self._whole, self._sparse, self._shown = _ProbeTable(), _ProbeTable(), _ProbeTable()
        self._shown.codes, self._shown.targets = self._module_calls.codes, borders.targets
        self._alive: WeakObjects[nn.Module] = WeakObjects(when_gone=self._forget_module)
        reads: _Reads = {}
        for observer in observers:
            kind, found, name = resolve_target(root, observer.target)
            reader = self._make_reader(observer)
            for owner in find_holders(found, name):
                key = (id(owner), "" if kind == "module" else name)
                reads.setdefault(key, (owner, []))[1].append(reader)
        self._parts = self._plan_parts(nodes, stages)
        whole = [stage for stage in stages if stage.name and not stage.after]
        self._add_modules(root, nodes, which, {stage.target: stage.name for stage in whole}, reads)
        self._functions = self._make_function_targets(root, nodes, stages, reads)
        known = {(one(), name) for one, name, *_ in self._functions}
        self._functions += _make_part_targets(root, parts, known)

    def _plan_parts(self, nodes: NodeTable, stages: Sequence[Stage]) -> PartPlan:
        """Stages that are parts of what a target does itself."""
        plan = PartPlan()
        for stage in stages:
            if stage.after:
                path = f"{stage.target.rpartition(':')[2]} ({stage.name})"
                node = nodes.add_node("stretch", path, "stretch", stage.name)
                plan.add_part(stage.target, stage.after, self._borders.border_pair(node.number))
        return plan

    def _add_modules(
        self, root: nn.Module, nodes: NodeTable, which: str, stage_of: dict[str, str], reads: _Reads
    ) -> None:
        selected = dict(select_modules(root, which))
        for target in (*stage_of, *self._parts.list_targets()):  # recorded whatever --modules says
            kind, module, _ = resolve_target(root, target)
            if kind == "module":
                selected.setdefault(target, module)
        parameters = {path: count_parameters(module) for path, module in selected.items()}  # of all below
        numbers: dict[int, int] = {}
        for path, module in selected.items():
            about = (type(module).__name__, stage_of.get(path), parameters[path])
            numbers[id(module)] = nodes.add_node("module", path, *about).number
            self._alive.add(module)
        self._whole.codes |= {key: encode_event(number, ENTER) for key, number in numbers.items()}
        observed = {
            key: (owner, tuple(readers)) for (key, name), (owner, readers) in reads.items() if not name
        }
        observed.setdefault(id(root), (root, ()))  # without modules its calls are still the forward phase
        for key, (owner, readers) in observed.items():
            self._alive.add(owner)
            self._sparse.codes[key] = -1
            self._sparse.targets[key] = CallTarget(None, readers).call_target
            if readers:
                self._whole.codes[key] = -1
                self._whole.targets[key] = self._sparse.targets[key]
                if key in numbers:
                    self._whole.targets[key] = _make_observed_call(numbers[key], self._borders, readers)
        for path in self._parts.list_targets() & selected.keys():
            key = id(selected[path])
            around = self._whole.targets.get(key) or _make_observed_call(numbers[key], self._borders, ())
            self._whole.codes[key] = -1
            self._whole.targets[key] = self._parts.wrap_call(path, around)

    def _make_function_targets(
        self, root: nn.Module, nodes: NodeTable, stages: Sequence[Stage], reads: _Reads
    ) -> list[_Heard]:
        """Methods and functions that are stages, or whose outputs are read."""
        names: dict[str, str | None] = dict.fromkeys(self._parts.list_targets())
        names |= {stage.target: stage.name for stage in stages if not stage.after}
        wanted: dict[tuple[int, str], tuple[Any, str, Pair | None]] = {}
        others: dict[tuple[int, str], tuple[Any, str, Pair | None]] = {}
        for target, stage in names.items():
            kind, owner, name = resolve_target(root, target)
            if kind == "module":
                continue
            pair = None
            if stage:
                library, colon, path = target.rpartition(":")
                node = nodes.add_node(kind, f"{path}()" if colon else path, kind, stage)
                if node.stage != stage:  # another library's of the same name
                    node = nodes.add_node(kind, f"{library}:{path}()", kind, stage)
                pair = self._borders.border_pair(node.number)
                if isinstance(owner, type):
                    pair = self._note_place(pair, node.path)
            wanted[id(owner), name] = (owner, target, pair)
            others |= {(id(one), name): (one, target, pair) for one in find_holders(owner, name)}
        wanted = others | wanted  # whoever is named is heard as this, whoever else holds the same
        for key, (owner, _) in reads.items():
            if key[1]:
                wanted.setdefault(key, (owner, "", None))
        found = []
        for key, (owner, target, pair) in wanted.items():
            readers = tuple(reads[key][1]) if key in reads else ()
            if isinstance(owner, nn.Module):
                self._alive.add(owner)
            sparse = CallTarget(None, readers)
            if names.get(target) == "":
                readers = (*readers, self._borders.mark_results)
            whole = CallTarget(pair, readers)
            if target in self._parts.list_targets():
                whole = replace(whole, around=self._parts.wrap_call(target, whole.call_plain))
            found.append((weakref.ref(owner), key[1], whole, sparse))
        return found

    def _note_place(self, pair: Pair, path: str) -> Pair:
        """The same, and where such a method is called: nobody finds that in the model."""
        before, after = pair
        borders = self._borders

        def begin(target: Any, args: Any) -> None:
            borders.note_place(path)
            before(target, args)

        return begin, after

    def _forget_module(self, key: int) -> None:
        """A module is gone, and its id may become another's."""
        for table in (self._whole, self._sparse, self._shown):
            table.codes.pop(key, None)
            table.targets.pop(key, None)
        self._module_calls.forget_object(key)

    def knows_module(self, module: nn.Module) -> bool:
        """Whether it is recorded."""
        return id(module) in self._whole.codes

    def attach_modules(self, modules: bool) -> None:
        """Let the readers of counts and, if wanted, all other probes do their work."""
        self.detach_modules()
        self._module_calls.install_call()
        table = self._whole if modules else self._sparse
        self._shown.codes.update(table.codes)
        self._shown.targets.update(table.targets)
        for reference, name, whole, sparse in self._functions:
            owner, target = reference(), whole if modules else sparse
            if owner is not None and target.does_something:
                self._module_calls.show_target(owner, name, target)
        if self._listener.outside is None:
            self._listener.calls.active = True

    def detach_modules(self) -> None:
        """Let no probe do anything; the stand-ins stay."""
        if self._listener.outside is None:
            self._listener.calls.active = False
        self._module_calls.hide_targets()
        self._shown.codes.clear()
        self._shown.targets.clear()
        self._borders.forget_open()
        self._parts.forget_open()

    def remove_all(self) -> None:
        """Put everything back for good."""
        self.detach_modules()
        self._module_calls.remove_call()

    def _make_reader(self, observer: Observer) -> Reader:
        def read(output: Any) -> None:
            try:
                for name, value in observer.read(output).items():
                    self._count(name, value)
            except Exception as error:  # an observer must never break the code under measurement
                self._note(f"cannot tell counts of {observer.target}: {type(error).__name__}: {error}")

        return read


def _make_part_targets(
    root: nn.Module, parts: Sequence[tuple[Stage, Pair]], known: Collection[tuple[Any, str]]
) -> list[_Heard]:
    """What is heard in every recorded step, with and without modules; a stage of that method goes first."""
    found: list[_Heard] = []
    for stage, pair in parts:
        _, owner, name = resolve_target(root, stage.target)
        if (owner, name) not in known:
            target = CallTarget(pair, ())
            found.append((weakref.ref(owner), name, target, target))
    return found


def _make_observed_call(
    number: int, borders: BorderWriter, readers: tuple[Reader, ...]
) -> Callable[..., Any]:
    """How a recorded module is called whose outputs are read."""

    def call(run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = None
        before, after = borders.border_pair(number)
        before(None, args)
        try:
            if borders.seen is None:
                output = run(*args, **kwargs)
            else:
                output = borders.call_noted(borders.seen, number, run, args, kwargs)
        except Exception as error:
            borders.note_failure(number, error)
            raise
        finally:
            after(None, args, output)
        for read in readers:
            read(output)
        return output

    return call
