"""Stages of a model that no family describes: from the tree of its modules, and from what its code is called.

Children are stages and their children parts of them, level by level, until there are enough names. A child
that holds nearly all of the model is opened. Lists and sequences give their children, whether they are called
or only iterated; of many, neighbours share a name: those between two changes of resolution, or as many as are
alike. What lies in no module has a name where its method or function has one that tells: losses, matching.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from detscope.zoo.contract import Stage

if TYPE_CHECKING:
    from torch import nn

_NEARLY_ALL = 0.95  # of the parameters
_MOST_STAGES = 32
_MOST_PARTS = 8  # of one sequence
_MOST_NAMED = 16  # children of one module that have names of their own
_MOST_ALIKE = 12  # of one class in a sequence that each have a name
_DEEPEST = 3  # dots in a name
_WORTH_PARTS = 0.08  # share of the layers from which a part has parts itself
_AS_MUCH = 1.2
_WRAPPED = 3  # models inside of each other that are opened
# words in names of methods and functions, and what these are then called; None: as they are
_WORDS = {
    "loss": "loss",
    "criterion": "loss",
    "match": "matcher",
    "assign": "assigner",
    "build_target": "assigner",
    "nms": "nms",
    "preprocess": "preprocess",
    "pre_process": "preprocess",
    "postprocess": "postprocess",
    "post_process": "postprocess",
    "anchor": "anchors",
    "decode": None,
    "predict": None,
    "forward_": None,
}
_OF_FUNCTIONS = ("loss", "matcher", "assigner", "nms", "postprocess")  # others may be anything
_MOST_METHODS = 12
_NOT_THEIRS = ("torch.", "lightning.", "pytorch_lightning.", "builtins")  # whose methods are no model's own


class _Part(NamedTuple):
    """A stage to be: one module, or neighbours in a sequence."""

    name: str
    paths: tuple[str, ...]
    modules: tuple[nn.Module, ...]


def find_structure(model: nn.Module) -> tuple[Stage, ...]:
    """Stages of a model in the order of its modules."""
    own, parts = _open_whole(model)
    found = [*own]
    named: dict[str, Stage] = {}
    level, whole = parts, _leaves(model)
    while level and len(named) + len(level) <= _MOST_STAGES + len(parts):
        for part in level:
            named |= {path: Stage(part.name, path) for path in part.paths}
        level = [below for part in level for below in _list_parts(part, whole)]
        # of a level that is too wide, the parts of what holds most
        level = level if len(named) + len(level) <= _MOST_STAGES else _keep_largest(level, len(named))
    _lend_names(model, named)
    found += _sort_stages(model, named.values())
    found += _find_code(model, {stage.target for stage in (*own, *found)})
    return tuple(found)


def _open_whole(model: nn.Module) -> tuple[list[Stage], list[_Part]]:
    """The stages of modules that were opened, for their own code, and the parts that the model has."""
    own: list[Stage] = []
    parts = _children_of("", "", model)
    for _ in range(_WRAPPED):
        whole = max(1, sum(_count(part) for part in parts))
        main = next((part for part in parts if _count(part) > _NEARLY_ALL * whole), None)
        if main is None or len(main.modules) > 1 or not any(main.modules[0].children()):
            break
        if _is_sequence(main.modules[0]):
            break  # its name stands before those of its children
        own.append(Stage(main.name, main.paths[0]))
        inner = _children_of("", main.paths[0], main.modules[0])
        parts = [one for part in parts for one in (inner if part is main else [part])]
    return own, parts


def _list_parts(part: _Part, whole: int) -> list[_Part]:
    """What a stage is made of; nothing where that is one module, or not worth its names."""
    deep = part.name.count(".")
    if deep >= _DEEPEST or (deep and (_weigh(part) < _WORTH_PARTS * whole or not _has_depth(part))):
        return []
    if len(part.modules) > 1:
        return [
            _Part(f"{part.name}.{_name_child(_last_of(path), module, part.modules)}", (path,), (module,))
            for path, module in zip(part.paths, part.modules, strict=True)
            if _has_work(module)
        ]
    (path,), (module,) = part.paths, part.modules
    parts = _children_of(part.name, path, module)
    if len(parts) == 1 and not _is_sequence(module):  # a wrapper: its only child's parts
        return _list_parts(parts[0]._replace(name=part.name), whole)
    return [one for one in parts if len(one.modules) > 1 or _has_work(one.modules[0])]


def _has_depth(part: _Part) -> bool:
    """Whether it is more than a layer with its normalisation and activation."""
    return len(part.modules) > 1 or any(has_children(child) for child in part.modules[0].children())


def _children_of(name: str, path: str, module: nn.Module) -> list[_Part]:
    """Children with their names; neighbours in a long sequence together."""
    children = [(f"{path}.{key}" if path else key, child) for key, child in module.named_children()]
    many = _is_sequence(module) or len(children) > _MOST_NAMED
    groups = _group_children(children) if many else [[one] for one in children]
    siblings = [child for _, child in children]
    parts = []
    for group in groups:
        keys = [_last_of(one) for one, _ in group]
        if len(group) == 1:
            last = _name_child(keys[0], group[0][1], siblings)
        else:
            last = f"{keys[0]}-{keys[-1]}"
            kinds = {type(child) for _, child in group}
            if len(kinds) == 1 and len({type(child) for child in siblings}) > 1:
                last = "_".join([last, name_class(kinds.pop().__name__)])
        modules = tuple(child for _, child in group)
        parts.append(_Part(f"{name}.{last}" if name else last, tuple(one for one, _ in group), modules))
    return parts


def _name_child(key: str, child: nn.Module, siblings: Sequence[nn.Module]) -> str:
    """A number says little where the neighbours are something else."""
    alike = len({type(one) for one in siblings}) == 1 and len(siblings) > 1
    return key if not key.isdigit() or alike else "_".join([key, name_class(type(child).__name__)])


def _group_children(children: list[tuple[str, nn.Module]]) -> list[list[tuple[str, nn.Module]]]:
    """Neighbours together, where there are many; the last by itself where it is of a kind of its own."""
    kinds = [type(child) for _, child in children]
    if len(children) <= (_MOST_ALIKE if len(set(kinds)) == 1 else _MOST_PARTS):
        return [[one] for one in children]
    ends = [children[-1:]] if kinds.count(kinds[-1]) == 1 and any(children[-1][1].children()) else []
    inner = children[: len(children) - len(ends)]
    groups: list[list[tuple[str, nn.Module]]] = []
    for one in inner:
        if not groups or _changes_size(one[1]):
            groups.append([])
        groups[-1].append(one)
    if len(groups) < _MOST_PARTS // 2:  # nothing says where: evenly
        each = -(-len(inner) // _MOST_PARTS)
        groups = [inner[first : first + each] for first in range(0, len(inner), each)]
    while len(groups) > _MOST_PARTS:  # the two neighbours that hold least
        sizes = [sum(_leaves(child) for _, child in group) for group in groups]
        place = min(range(len(groups) - 1), key=lambda place: sizes[place] + sizes[place + 1])
        groups[place : place + 2] = [groups[place] + groups[place + 1]]
    return groups + ends


def _changes_size(module: nn.Module) -> bool:
    """Whether a feature map leaves it larger or smaller than it came, by its first layer."""
    first: Any = next((one for one in module.modules() if not has_children(one)), module)
    stride = getattr(first, "stride", 1)
    steps = stride if isinstance(stride, tuple) else (stride,)
    return any(isinstance(step, int) and step > 1 for step in steps) or hasattr(first, "scale_factor")


def _keep_largest(level: list[_Part], taken: int) -> list[_Part]:
    """Whole sets of parts, those of the largest parents first, as many as there is room for."""
    families: dict[str, list[_Part]] = {}
    for part in level:
        families.setdefault(part.name.rpartition(".")[0], []).append(part)
    weights = {parent: sum(map(_weigh, parts)) for parent, parts in families.items()}
    room = _MOST_STAGES - taken
    kept: list[str] = []
    for parent in sorted(weights, key=lambda one: -weights[one]):
        if len(families[parent]) > room:  # nor has another parts that holds about as much
            kept = [one for one in kept if weights[one] > _AS_MUCH * weights[parent]]
            break
        room -= len(families[parent])
        kept.append(parent)
    return [part for part in level if part.name.rpartition(".")[0] in kept]


def _lend_names(model: nn.Module, named: dict[str, Stage]) -> None:
    """Children of containers that may never be called have their name, where they have none of their own."""
    from torch import nn

    modules = dict(model.named_modules())
    waiting = list(named)
    while waiting:
        path = waiting.pop()
        module = modules[path]
        if _is_sequence(module) or isinstance(module, nn.ModuleDict):
            below = [f"{path}.{key}" for key, _ in module.named_children()]
            new = {one: Stage(named[path].name, one) for one in below if one not in named}
            named |= new
            waiting += new


def _sort_stages(model: nn.Module, stages: Iterable[Stage]) -> list[Stage]:
    """As the modules stand in the model, a stage before its parts."""
    place = {path: number for number, (path, _) in enumerate(model.named_modules())}
    return sorted(stages, key=lambda stage: (place[stage.target], stage.name.count(".")))


def _find_code(model: nn.Module, targets: set[str]) -> Iterator[Stage]:
    """Methods of stages and functions of their files whose names say what they do."""
    owners = [(path, one) for path, one in model.named_modules() if not path or path in targets]
    owners = [(path, one) for path, one in owners if path.count(".") < 2]
    files: dict[str, None] = {}
    left = _MOST_METHODS
    for path, owner in owners:
        for kind in type(owner).__mro__:
            if kind.__module__.startswith(_NOT_THEIRS) or kind.__module__ == "builtins":
                continue
            files[kind.__module__] = None
            for name in vars(kind):
                known = _name_code(name)
                if known and left and _is_function(vars(kind)[name]) and not name.startswith("__"):
                    left -= 1
                    yield Stage(known, f"{path}.{name}()" if path else f"{name}()")
    for file in files:
        for name, value in list(vars(sys.modules.get(file, sys)).items()):
            theirs = getattr(value, "__module__", None) == file and hasattr(value, "__code__")
            known = _name_code(name)
            if theirs and known in _OF_FUNCTIONS and not name.startswith("test") and left:
                left -= 1
                yield Stage(known, f"{file}:{name}")


def _is_function(value: object) -> bool:
    """Whether it is written as a method; a class may hold anything that can be called as an attribute."""
    return isinstance(getattr(value, "__func__", value), FunctionType)


def _name_code(name: str) -> str | None:
    for word, known in _WORDS.items():
        if word in name.lower():
            return known or name.strip("_")
    return None


def _is_sequence(module: nn.Module) -> bool:
    """Whether its children have numbers: a list, or a sequence that may be iterated."""
    keys = [key for key, _ in module.named_children()]
    return bool(keys) and all(key.isdigit() for key in keys)


def _last_of(path: str) -> str:
    return path.rpartition(".")[2]


def has_children(module: nn.Module) -> bool:
    """Whether it has parts. Those are not asked whether they are true: a list without any is not."""
    return next(module.children(), None) is not None


def _has_work(module: nn.Module) -> bool:
    return has_children(module) or next(module.parameters(), None) is not None


def _count(part: _Part) -> int:
    return sum(map(count_parameters, part.modules))


def count_parameters(module: nn.Module) -> int:
    """Numbers that it can learn, as far as they are there: lazy modules that were never called have none."""
    return sum(one.numel() for one in module.parameters() if not hasattr(one, "materialize"))


def _leaves(module: nn.Module) -> int:
    return sum(not has_children(one) for one in module.modules())


def _weigh(part: _Part) -> int:
    return sum(_leaves(module) for module in part.modules)


def name_class(name: str) -> str:
    """The name of a class as a word of stages: TransformerEncoderLayer, SPPF, Conv2d."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return name.strip("_").lower()
