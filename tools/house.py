"""How large the house is and how it reads: `python -m tools.house [FOLDER ...]`, folders side by side.

Every `def` but dunders counts. A name of one word has no underscore inside. `Any`, `object` and aliases of
`dict[str, Any]` in a signature count as untyped.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TYPED_ROOMS = ("analyze", "report")
_UNTYPED = re.compile(r"\b(Any|object)\b")


@dataclass
class House:
    """What is counted over all files of a package."""

    name: str
    file_lines: list[int] = field(default_factory=list)
    statements: int = 0
    function_lines: list[int] = field(default_factory=list)
    one_word: int = 0
    in_folders: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    signatures: int = 0  # of the typed rooms
    untyped: int = 0
    imports: dict[str, set[str]] = field(default_factory=dict)  # room -> rooms


def measure(package: Path) -> House:
    """Read every module below a package."""
    house = House(package.name)
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        house.file_lines.append(text.count("\n"))
        house.in_folders[str(path.parent.relative_to(package))] += 1
        house.statements += sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
        room = _room_of(path.relative_to(package))
        aliases = _untyped_aliases(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                house.classes[node.name] += 1
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                _count_function(house, node, room, aliases)
        house.imports.setdefault(room, set()).update(_imported_rooms(tree, package.name) - {room})
    return house


def _count_function(
    house: House, node: ast.FunctionDef | ast.AsyncFunctionDef, room: str, aliases: set[str]
) -> None:
    if node.name.startswith("__") and node.name.endswith("__"):
        return
    house.function_lines.append((node.end_lineno or node.lineno) - node.lineno + 1)
    house.one_word += "_" not in node.name.strip("_")
    if room in TYPED_ROOMS:
        house.signatures += 1
        house.untyped += any(_is_untyped(one, aliases) for one in _annotations(node))


def _annotations(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    arguments = node.args
    for one in (
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ):
        if one is not None and one.annotation is not None:
            yield ast.unparse(one.annotation)
    if node.returns is not None:
        yield ast.unparse(node.returns)


def _is_untyped(annotation: str, aliases: set[str]) -> bool:
    return bool(_UNTYPED.search(annotation)) or bool(aliases & set(re.findall(r"\w+", annotation)))


def _untyped_aliases(tree: ast.Module) -> set[str]:
    """Names of this module that only stand for something untyped: `Summary = Mapping[str, Any]`."""
    found = set()
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Subscript | ast.BinOp):
            continue
        if isinstance(node.targets[0], ast.Name) and _UNTYPED.search(ast.unparse(node.value)):
            found.add(node.targets[0].id)
    return found


def _room_of(path: Path) -> str:
    return path.parts[0] if len(path.parts) > 1 else path.stem


def _imported_rooms(tree: ast.Module, package: str) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = (
                [f"{node.module}.{one.name}" for one in node.names]
                if node.module == package
                else [node.module]
            )
        elif isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith(f"{package}.")}
    return found


def _spread(values: list[int]) -> str:
    if not values:
        return "-"
    ordered = sorted(values)
    return f"{statistics.median(ordered):.0f} / {ordered[int(0.9 * (len(ordered) - 1))]} / {ordered[-1]}"


def rows_of(house: House) -> dict[str, str]:
    """The figures as people read them."""
    functions = len(house.function_lines)
    folder, most = house.in_folders.most_common(1)[0]
    twice = sorted(name for name, count in house.classes.items() if count > 1)
    share = house.untyped / house.signatures if house.signatures else 0.0
    untyped = f"{share:.1%} ({house.untyped} of {house.signatures})"
    return {
        "files": f"{len(house.file_lines):,}",
        "lines": f"{sum(house.file_lines):,}",
        "statements": f"{house.statements:,}",
        "file lines, median / p90 / max": _spread(house.file_lines),
        "function lines, median / p90 / max": _spread(house.function_lines),
        "functions": f"{functions:,}",
        "most files in a folder": f"{most} ({folder})",
        "one-word function names": f"{house.one_word / functions:.1%}" if functions else "-",
        "class names used twice or more": f"{len(twice)} {' '.join(twice[:4])}".rstrip(),
        f"functions with Any in {' + '.join(TYPED_ROOMS)}": untyped,
    }


def main(arguments: list[str]) -> None:
    """Print the figures of each folder in a column of its own, then who imports whom in the last."""
    folders = [Path(one) for one in arguments] or [Path("src/detscope")]
    houses = [measure(folder) for folder in folders]
    tables = [rows_of(house) for house in houses]
    width = max(len(name) for name in tables[0])
    columns = [
        max(len(str(folder)), *(len(value) for value in table.values()))
        for folder, table in zip(folders, tables, strict=True)
    ]
    print(
        " " * width, *(f"{folder!s:>{size}}" for folder, size in zip(folders, columns, strict=True)), sep="  "
    )
    for name in tables[0]:
        print(
            f"{name:<{width}}",
            *(f"{table[name]:>{size}}" for table, size in zip(tables, columns, strict=True)),
            sep="  ",
        )
    print("\nrooms and what they import")
    for room, others in sorted(houses[-1].imports.items()):
        print(f"  {room:<12} {', '.join(sorted(others)) or '-'}")


if __name__ == "__main__":
    main(sys.argv[1:])
