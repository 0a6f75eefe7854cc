"""Parts that can be added without changing anything else: families, formats, sections, advice, data sets.

A part is an object of its room's own type with a `name: str` and, where the order matters, an `order: int`
(smallest first; parts without one come last). It is found in three places, all by `parts_of`:

1. a file in the kind's folder (`FOLDERS`, sub-folders included; names that begin with `_` are helpers and
   left alone) that has the constant `PART`, or `PARTS` for several. The file is imported when the kind is
   listed, so it imports heavy libraries (torch) in its functions only.
2. an entry point of an installed package, of the group `detscope.<kind>`. It names such an object, a list of
   them, or a module that has `PART` or `PARTS`:

       [project.entry-points."detscope.families"]
       my_detector = "my_package.family"

3. `add_part(kind, part)`, called at run time, for instance in a user's own file.

    families = parts_of("families", Family)       # tuple[Family, ...]: ours, outside ones, added ones
    family = find_part("families", Family, "ssd")  # or None

A broken outside package never stops a command: it is left out, and one line on stderr says which and why.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, TypeVar

Kind = Literal["families", "formats", "sections", "advice", "datasets", "census"]
Part = TypeVar("Part")

FOLDERS: dict[Kind, str] = {
    "families": "detscope.zoo.families",
    "formats": "detscope.ingest.formats",
    "sections": "detscope.report.sections",
    "advice": "detscope.analyze.advice.rules",
    "datasets": "detscope.data.formats",
    "census": "detscope.record.census.patterns",
}
_LAST = 1_000_000
_added: dict[Kind, list[Any]] = {}


def parts_of(kind: Kind, part_type: type[Part]) -> tuple[Part, ...]:
    """All parts of a kind, each of `part_type`: by `order`, then ours before others, then by file name."""
    own = _load_own(kind)
    outside = _load_outside(kind, part_type)  # type: ignore[arg-type]  # mypy: a type[Part] is no Hashable
    return tuple(sorted([*own, *outside, *_added.get(kind, [])], key=_order_of))


def find_part(kind: Kind, part_type: type[Part], name: str) -> Part | None:
    """The part of this name, or None."""
    return next((part for part in parts_of(kind, part_type) if _name_of(part) == name), None)


def add_part(kind: Kind, part: Any) -> None:
    """Add a part at run time; one of the same name that was added before is replaced, ours never are."""
    if any(_name_of(own) == _name_of(part) for own in _load_own(kind)):
        raise ValueError(f"{_name_of(part)!r} is registered twice in {kind}")
    kept = [other for other in _added.get(kind, []) if _name_of(other) != _name_of(part)]
    _added[kind] = [*kept, part]


@cache
def _load_own(kind: Kind) -> tuple[Any, ...]:
    found = [part for module in _import_folder(FOLDERS[kind]) for part in _declared_in(module)]
    names = [_name_of(part) for part in found]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{', '.join(twice)} registered twice in {kind}")
    return tuple(found)


def _import_folder(name: str) -> Iterator[ModuleType]:
    for entry in sorted(pkgutil.iter_modules(import_module(name).__path__), key=lambda entry: entry.name):
        if entry.name.startswith("_"):
            continue
        if entry.ispkg:
            yield from _import_folder(f"{name}.{entry.name}")
        else:
            yield import_module(f"{name}.{entry.name}")


@cache
def _load_outside(kind: Kind, part_type: type[Any]) -> tuple[Any, ...]:
    from importlib.metadata import entry_points

    names = {_name_of(part) for part in _load_own(kind)}
    kept = []
    for entry in sorted(entry_points(group=f"detscope.{kind}"), key=lambda entry: entry.name):
        package = entry.dist.name if entry.dist else entry.module
        try:
            for part in _declared_in(entry.load()):
                _check_part(part, part_type, names)
                names.add(_name_of(part))
                kept.append(part)
        except (Exception, SystemExit) as problem:  # whatever a stranger's code raises while it is imported
            reason = " ".join(f"{type(problem).__name__}: {problem}".split())
            _tell(f"the package {package} is left out: its {kind} {entry.name!r} cannot be used ({reason})")
    return tuple(kept)


def _declared_in(found: Any) -> list[Any]:
    if isinstance(found, ModuleType):
        found = found.PARTS if hasattr(found, "PARTS") else found.PART
    return list(found) if isinstance(found, list | tuple) else [found]


def _check_part(part: Any, part_type: type[Any], names: set[str]) -> None:
    if not isinstance(part, part_type):
        raise TypeError(f"expected {part_type.__module__}.{part_type.__name__}, got {type(part).__name__}")
    if _name_of(part) in names:
        raise ValueError(f"the name {_name_of(part)!r} is taken")


def _name_of(part: Any) -> str:
    return str(part.name)


def _order_of(part: Any) -> int:
    order = getattr(part, "order", None)
    return _LAST if order is None else int(order)


def _tell(line: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"detscope: {line}\n")
