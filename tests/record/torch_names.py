"""Which names of torch and torchvision the package uses, as its source tells; for test_torch_names.py."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src" / "detscope"
LIBRARIES = ("torch", "torchvision")
_PRIVATE = re.compile(r"_[A-Za-z]\w*")
_PUTTING = ("put", "put_around")  # what replaces a name that has to be there
_LACKING = {"ImportError", "AttributeError", "TypeError", "Exception"}


@dataclass(frozen=True)
class NameUse:
    """One place: a dotted name, or `*._name` for an attribute of something, or a text that names one."""

    name: str
    place: str
    asked: bool  # somebody looks whether it is there, or can do without
    keywords: tuple[str, ...] = ()  # of a call

    @property
    def is_private(self) -> bool:
        return any(_PRIVATE.fullmatch(part.replace("{}", "x")) for part in self.name.split("."))


def find_uses() -> list[NameUse]:
    """All of them."""
    return [use for path in sorted(SOURCE.rglob("*.py")) for use in _FileWalk(path).walk()]


def find_thing(name: str) -> Any:
    """What a dotted name means in this torch; raises LookupError where it means nothing."""
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for position, part in enumerate(parts[1:], start=2):
        try:
            found = getattr(found, part)
        except (AttributeError, RuntimeError):
            try:
                found = importlib.import_module(".".join(parts[:position]))
            except ImportError:
                raise LookupError(f"this torch has no {'.'.join(parts[:position])}") from None
    return found


def takes_keyword(thing: Any, keyword: str) -> bool:
    """Whether a function or class has an argument of this name; true where it does not say."""
    described = getattr(thing.__init__ if isinstance(thing, type) else thing, "__doc__", None) or ""
    if described.startswith("__init__("):  # written by pybind
        return f"{keyword}:" in described
    try:
        arguments = inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return True
    return keyword in arguments or any(one.kind is one.VAR_KEYWORD for one in arguments.values())


class _FileWalk:
    def __init__(self, path: Path) -> None:
        self._place = path.relative_to(SOURCE).as_posix()
        self._tree = ast.parse(path.read_text(encoding="utf-8"))
        self._above = {child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)}
        self._known: dict[str, str] = {}  # names of this file -> what they are, dotted
        self._own: set[str] = set()  # private names that classes of this file have
        self._uses_torch = False

    def walk(self) -> Iterator[NameUse]:
        nodes = list(ast.walk(self._tree))
        for node in nodes:
            yield from self._learn_imports(node)
        self._uses_torch = any(path.split(".")[0] in LIBRARIES for path in self._known.values())
        for node in nodes:
            self._learn_names(node)
        for node in nodes:
            if isinstance(node, ast.Attribute):
                yield from self._read_attribute(node)
            elif isinstance(node, ast.Name):
                yield from self._read_call(node, self._known.get(node.id))
            elif isinstance(node, (ast.Constant, ast.JoinedStr)):
                yield from self._read_text(node)

    def walk_owned(self, owners: Collection[str]) -> Iterator[tuple[str, NameUse]]:
        """Attributes of variables of these names, or of items of lists of them."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute):
                owner = ast.unparse(node.value).partition("[")[0].removesuffix("s")
                if owner in owners:
                    yield owner, self._use(node.attr, node)

    def _learn_imports(self, node: ast.AST) -> Iterator[NameUse]:
        if isinstance(node, ast.Import):
            for one in node.names:
                self._known[one.asname or one.name.split(".")[0]] = (
                    one.name if one.asname else one.name.split(".")[0]
                )
                if one.name.split(".")[0] in LIBRARIES:
                    yield self._use(one.name, node)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for one in node.names:
                path = f"{node.module}.{one.name}"
                self._known[one.asname or one.name] = path
                if node.module.split(".")[0] in LIBRARIES:
                    yield self._use(path, node)

    def _learn_names(self, node: ast.AST) -> None:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            self._own.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(one, ast.Attribute) and _is_self(one.value):
                        self._own.add(one.attr)
                    elif isinstance(one, ast.Name):
                        self._own.add(one.id)
                if node.value is not None and ast.unparse(node.value) == "sys.modules.get('torch')":
                    self._known.setdefault(ast.unparse(target), "torch")
                lasting = isinstance(target, ast.Attribute) or self._above[node] is self._tree
                path = self._path_of(node.value) if lasting else None
                if path is not None and path.split(".")[0] in LIBRARIES:
                    self._known.setdefault(ast.unparse(target), path)

    def _path_of(self, node: ast.AST | None) -> str | None:
        """What an expression means, if it is a name of a library."""
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in self._known:
            return self._known[ast.unparse(node)]
        if isinstance(node, ast.Attribute):
            before = self._path_of(node.value)
            return None if before is None else f"{before}.{node.attr}"
        return None

    def _read_attribute(self, node: ast.Attribute) -> Iterator[NameUse]:
        path = self._path_of(node)
        if path is not None and path.split(".")[0] in LIBRARIES:
            above = self._above[node]
            if not (isinstance(above, ast.Attribute) and self._path_of(above)):  # else part of a longer one
                yield from self._read_call(node, path, whole=True)
        elif path is None and _PRIVATE.fullmatch(node.attr) and not self._is_own(node):
            yield self._use(f"*.{node.attr}", node)

    def _is_own(self, node: ast.Attribute) -> bool:
        return _is_self(node.value) or node.attr in self._own

    def _read_call(
        self, node: ast.Attribute | ast.Name, path: str | None, whole: bool = False
    ) -> Iterator[NameUse]:
        if path is None or path.split(".")[0] not in LIBRARIES:
            return
        above = self._above[node]
        if isinstance(above, ast.Call) and above.func is node:
            keywords = tuple(word.arg for word in above.keywords if word.arg)
            yield self._use(path, node, keywords)
        elif whole:
            yield self._use(path, node)

    def _read_text(self, node: ast.Constant | ast.JoinedStr) -> Iterator[NameUse]:
        above = self._above.get(node)
        text = _text_of(node)
        if (
            text is None
            or not _PRIVATE.fullmatch(text.replace("{}", "x"))
            or isinstance(above, ast.JoinedStr)
        ):
            return
        asks = isinstance(above, ast.Call) and _name_of(above.func) in ("getattr", "hasattr", "setattr")
        if text not in self._own and (asks or self._uses_torch):
            yield self._use(f"*.{text}", node)

    def _use(self, name: str, node: ast.AST, keywords: tuple[str, ...] = ()) -> NameUse:
        place = f"{self._place}:{getattr(node, 'lineno', 0)}"
        return NameUse(name, place, self._is_asked(name, node), keywords)

    def _is_asked(self, name: str, node: ast.AST) -> bool:
        last = name.rpartition(".")[2]
        above = self._above.get(node)
        assumed = not isinstance(node, (ast.Constant, ast.JoinedStr))
        if isinstance(above, ast.Subscript):
            assumed = True
        elif isinstance(above, ast.Call) and not assumed:
            how = _name_of(above.func)
            assumed = how in _PUTTING or (how == "getattr" and len(above.args) == 2)
        inside, child = above, node
        while inside is not None and assumed:
            if isinstance(inside, ast.Try) and child in inside.body:
                assumed = not any(_names_in(one.type) & _LACKING for one in inside.handlers)
            elif isinstance(inside, ast.FunctionDef):  # asked in the same function
                assumed = not any(_asks_for(one, last) for one in ast.walk(inside))
            inside, child = self._above.get(inside), inside
        return not assumed


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _name_of(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _asks_for(node: ast.AST, name: str) -> bool:
    if not isinstance(node, ast.Call) or f"'{name}'" not in ast.unparse(node):
        return False
    how = _name_of(node.func)  # `get`: of an object's own attributes
    return how in ("hasattr", "get") or (how == "getattr" and len(node.args) == 3)


def _names_in(node: ast.AST | None) -> set[str]:
    return set() if node is None else {_name_of(one) for one in ast.walk(node)}


def _text_of(node: ast.Constant | ast.JoinedStr) -> str | None:
    """A text; `{}` stands for what is put into it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    parts = [one.value if isinstance(one, ast.Constant) else "{}" for one in node.values]
    return "".join(map(str, parts))


_KINETO, _PROFILER = "torch._C._autograd._KinetoEvent", "torch._C._profiler._ProfilerEvent"
_FIELDS = tuple(f"torch._C._profiler._ExtraFields_{kind}" for kind in ("TorchOp", "Allocation"))
# the profiler's classes, by the names that their objects have in each place
_EVENTS: dict[str, dict[str, tuple[str, ...]]] = {
    "predict/trace/scratch.py": {"event": (_KINETO,)},
    "record/memory/": {"event": (_KINETO, _PROFILER), "extra": _FIELDS},
    "record/operators/": {"event": (_KINETO,)},
    "sweep/measure.py": {"event": (_KINETO,)},
}


def find_event_uses() -> list[tuple[str, str, tuple[str, ...]]]:
    """Attributes of the profiler's events that are taken for granted: their names, places and classes."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        text, file = path.read_text(encoding="utf-8"), path.relative_to(SOURCE).as_posix()
        kinds = next((kinds for place, kinds in _EVENTS.items() if file.startswith(place)), None)
        if kinds is None:
            assert "kineto_results" not in text, f"{file} reads the profiler's events: name its classes here"
            continue
        for owner, use in _FileWalk(path).walk_owned(kinds):
            if not use.asked:
                found.append((use.name, use.place, kinds[owner]))
    return found
