"""Modules and stages: intervals with a path, from whatever a trace tells about them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detscope.ingest.kineto.columns import Book, Columns
from detscope.ingest.kineto.names import MODULE_EVENT, module_path, stage_name, without_direction
from detscope.ingest.kineto.nesting import NOBODY, Nest, Numbers
from detscope.ingest.kineto.scene import Scene, no_columns

ROOT = ""


@dataclass(frozen=True)
class Places:
    """Intervals of modules, or of stages, each with its path."""

    intervals: Columns
    path: Numbers  # into `paths`
    paths: list[str]
    types: dict[str, str]
    direction_backward: np.ndarray[tuple[int], np.dtype[np.bool_]]
    nest: Nest
    parents: Numbers
    made_of: str

    def __len__(self) -> int:
        return len(self.intervals)


def find_modules(scene: Scene) -> Places:
    """Modules by Python events, by detscope's own trace, or by annotations that spell a path."""
    if "own module" in scene.own:
        return _own(scene, "own module")
    python = scene.python.take(scene.matching(scene.python, MODULE_EVENT))
    if len(python):
        return _from_python(scene, python)
    spelled = scene.annotations.take(scene.flags(scene.annotations, module_path))
    if not len(spelled):
        return _places(scene, no_columns(), np.empty(0, np.int64), [], {}, "")
    paths, types = Book(), {}
    codes = np.empty(len(spelled), np.int64)
    for index, code in enumerate(spelled.name.tolist()):
        path, kind = module_path(scene.names[code]) or (ROOT, "")
        codes[index], types[path] = paths[path], kind
    return _places(scene, spelled, codes, paths.values_in_order(), types, "annotations")


def find_stages(scene: Scene, modules: Places) -> Places:
    """Stages by detscope's own trace, by annotations that name one, else the root's direct children."""
    if "own stage" in scene.own:
        return _own(scene, "own stage")
    found = scene.annotations.take(scene.flags(scene.annotations, stage_name))
    if len(found):
        return _nested(
            scene, found, {code: stage_name(scene.names[code]) or "" for code in set(found.name.tolist())}
        )
    top = np.array([bool(path) and "." not in path for path in modules.paths], bool)
    chosen = top[modules.path] if len(modules) else np.empty(0, bool)
    if not chosen.any() or ROOT not in modules.paths:
        return _places(scene, no_columns(), np.empty(0, np.int64), [], {}, "")
    return _places(
        scene, modules.intervals.take(chosen), modules.path[chosen], modules.paths, {}, "the root's children"
    )


def _nested(scene: Scene, found: Columns, names: dict[int, str]) -> Places:
    """A stage inside another is a part of it: its path begins with the other's."""
    nest = Nest(scene.axis, found.thread, found.start_ns, found.wall_ns)
    parents, paths = nest.parents(), Book()
    codes = np.full(len(found), NOBODY, np.int64)
    texts: dict[int, str] = {}
    for index in np.argsort(nest.depth, kind="stable").tolist():
        own, parent = names[int(found.name[index])], int(parents[index])
        texts[index] = f"{texts[parent]}.{own}" if parent >= 0 and texts[parent] != own else own
        codes[index] = paths[texts[index]]
    return _places(scene, found, codes, paths.values_in_order(), {}, "annotations")


def _from_python(scene: Scene, found: Columns) -> Places:
    """Paths of types and numbers ("Encoder_0.Linear_2"): attribute names are not in such a trace."""
    nest = Nest(scene.axis, found.thread, found.start_ns, found.wall_ns)
    parents, paths = nest.parents(), Book()
    labels = [scene.names[code].partition("nn.Module: ")[2] for code in found.name.tolist()]
    roots = {labels[index] for index in np.flatnonzero(parents == NOBODY).tolist()}
    one_root = len(roots) == 1
    texts: dict[int, str] = {}
    types: dict[str, str] = {}
    codes = np.empty(len(found), np.int64)
    for index in np.argsort(nest.depth, kind="stable").tolist():
        parent = int(parents[index])
        if parent == NOBODY:
            text = ROOT if one_root else labels[index]
        else:
            text = f"{texts[parent]}.{labels[index]}" if texts[parent] else labels[index]
        texts[index], codes[index] = text, paths[text]
        types[text] = labels[index].rpartition("_")[0] or labels[index]
    return _places(scene, found, codes, paths.values_in_order(), types, "nn.Module events")


def _own(scene: Scene, role: str) -> Places:
    found, paths = scene.own[role], Book()
    parted = {code: without_direction(scene.names[code]) for code in set(found.name.tolist())}
    codes = np.array([paths[_own_path(parted[code][0])] for code in found.name.tolist()], np.int64)
    backward = np.array([parted[code][1] != "forward" for code in found.name.tolist()], bool)
    return _places(scene, found, codes, paths.values_in_order(), {}, "detscope's own trace", backward)


def _own_path(name: str) -> str:
    """The root is drawn with its type for a name; attributes do not begin with a capital."""
    return ROOT if not name or (name[0].isupper() and "." not in name) else name


def _places(
    scene: Scene,
    found: Columns,
    codes: Numbers,
    paths: list[str],
    types: dict[str, str],
    made_of: str,
    backward: np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None,
) -> Places:
    nest = Nest(scene.axis, found.thread, found.start_ns, found.wall_ns)
    directions = np.zeros(len(found), bool) if backward is None else backward
    return Places(found, codes, paths, types, directions, nest, nest.parents(), made_of)
