"""Trees as boxes: an icicle, whose rows are depths, or a treemap, whose boxes lie inside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import escape

from detscope.report.colours import is_dark
from detscope.report.figures import CANNOT_TELL
from detscope.report.model import Tree

ROW = 24  # pixels of an icicle's row
MOST_ROWS = 16
HEAD = 18  # pixels for the name of a box that holds others
WIDTH = 1000.0
UNKNOWN = "?"  # in the place of a figure
_NARROWEST = 2.0  # units of the width: nothing smaller can be read or hit


@dataclass(frozen=True)
class TreeBox:
    """A part of a tree in its place: units across, pixels down."""

    part: int
    left: float
    top: float
    width: float
    height: float


def figure_texts(tree: Tree) -> list[tuple[str, str, str]]:
    """Total, own and share of every part, as they are told when one points at it; units apart."""
    sums = sums_of(tree)
    whole = sum(sums[index] for index, parent in enumerate(tree.parents) if not parent) or 1.0
    totals: Sequence[float | None] = tree.totals or sums
    shares: Sequence[float | None] = tree.shares or [
        None if sum_ is None else sum_ / whole for sum_ in totals
    ]
    return [
        (_write(totals[index], tree.unit), _write(tree.values[index], tree.unit), _write_share(shares[index]))
        for index in range(len(tree.ids))
    ]


def tell_part(tree: Tree, index: int, texts: Sequence[tuple[str, str, str]]) -> str:
    """What is said of a part: its name, then all three figures; the page's script says the same."""
    if tree.details:
        return f"{tree.ids[index]}\n{tree.details[index]}"
    total, own, share = texts[index]
    figures = f"total {_add_unit(total, tree.unit)} · self {_add_unit(own, tree.unit)}"
    return f"{tree.ids[index]}\n{figures} · {_add_unit(share, '%')} of {tree.whole}"


def sums_of(tree: Tree) -> list[float]:
    """What a part takes with everything below it."""
    places = {name: index for index, name in enumerate(tree.ids)}
    sums = [max(0.0, float(value or 0)) for value in tree.values]
    for index in sorted(range(len(sums)), key=lambda one: -_depth_of(tree, places, one)):
        parent = places.get(tree.parents[index])
        if parent is not None:
            sums[parent] += sums[index]
    return sums


def draw_tree(tree: Tree, label: str, height: int) -> str:
    """The picture of the whole tree; parts too small for it come when one zooms in."""
    below = _children_of(tree)
    sums, texts = sums_of(tree), figure_texts(tree)
    if tree.shape == "icicle":
        boxes = [box for box in _lay_icicle(below, sums) if box.width >= _NARROWEST]
        height = round(max((box.top + box.height for box in boxes), default=ROW))
    else:
        boxes = list(_lay_treemap(below, sums, TreeBox(-1, 0, 0, WIDTH, height), below.get("", [])))
    drawn = "".join(_draw_box(tree, box, texts) for box in boxes)
    what = f'role="img" aria-label="{escape(label)}"'
    return f'<div class="tree {tree.shape}" {what} style="height:{height}px">{drawn}</div>'


def _draw_box(tree: Tree, box: TreeBox, texts: Sequence[tuple[str, str, str]]) -> str:
    colour = tree.colours[box.part]
    style = f"left:{box.left / 10:.2f}%;width:{box.width / 10:.2f}%;top:{box.top:.0f}px;background:{colour}"
    if tree.shape == "treemap":
        style += f";height:{box.height:.0f}px"
    light = ' class="on-dark"' if is_dark(colour) else ""
    name = escape(tree.labels[box.part]) if box.width >= 16 and box.height >= 12 else ""
    told = escape(tell_part(tree, box.part, texts))
    return f'<i data-n="{box.part}"{light} style="{style}" title="{told}">{name}</i>'


def _children_of(tree: Tree) -> dict[str, list[int]]:
    """Parts by the name of what holds them; those that nothing holds by an empty one."""
    known = set(tree.ids)
    below: dict[str, list[int]] = {}
    for index, parent in enumerate(tree.parents):
        below.setdefault(parent if parent in known else "", []).append(index)
    for index, name in enumerate(tree.ids):
        if name in below:
            below[f"#{index}"] = below[name]
    return below


def _lay_icicle(below: dict[str, list[int]], sums: Sequence[float]) -> Iterator[TreeBox]:
    whole = sum(sums[index] for index in below.get("", [])) or 1.0
    waiting = [(index, -1.0, 0) for index in below.get("", [])]
    left = 0.0
    for place, (index, _, depth) in enumerate(waiting):
        waiting[place] = (index, left, depth)
        left += WIDTH * sums[index] / whole
    while waiting:
        index, left, depth = waiting.pop()
        width = WIDTH * sums[index] / whole
        yield TreeBox(index, left, depth * ROW, width, ROW)
        for child in below.get(f"#{index}", []) if depth + 1 < MOST_ROWS else ():
            waiting.append((child, left, depth + 1))
            left += WIDTH * sums[child] / whole


def _lay_treemap(
    below: dict[str, list[int]], sums: Sequence[float], room: TreeBox, parts: Sequence[int]
) -> Iterator[TreeBox]:
    """Squares as far as they go: rows along the shorter side, each as long as its boxes stay compact."""
    for box in square_boxes([(part, sums[part]) for part in parts if sums[part] > 0], room):
        if min(box.width, box.height) < _NARROWEST:
            continue
        yield box
        inner = TreeBox(-1, box.left + 2, box.top + HEAD, box.width - 4, box.height - HEAD - 2)
        if inner.width > 6 and inner.height > 6:
            yield from _lay_treemap(below, sums, inner, below.get(f"#{box.part}", []))


def square_boxes(parts: Sequence[tuple[int, float]], room: TreeBox) -> list[TreeBox]:
    """Boxes of the parts' sizes that fill a room (Bruls, Huizing and van Wijk's squarified treemap)."""
    left, top, width, height = room.left, room.top, room.width, room.height
    rest = sorted(parts, key=lambda part: -part[1])
    unit = width * height / (sum(size for _, size in rest) or 1.0)
    boxes: list[TreeBox] = []
    while rest:
        side = max(1e-9, min(width, height))
        taken = 1
        while taken < len(rest) and _worst(rest[: taken + 1], side, unit) <= _worst(rest[:taken], side, unit):
            taken += 1
        row, rest = rest[:taken], rest[taken:]
        deep = unit * sum(size for _, size in row) / side
        at = 0.0
        for part, size in row:
            length = unit * size / (deep or 1.0)
            upright = width >= height
            boxes.append(
                TreeBox(part, left, top + at, deep, length)
                if upright
                else TreeBox(part, left + at, top, length, deep)
            )
            at += length
        if width >= height:
            left, width = left + deep, width - deep
        else:
            top, height = top + deep, height - deep
    return boxes


def _worst(row: Sequence[tuple[int, float]], side: float, unit: float) -> float:
    """The longest side of a row's boxes beside their shorter one."""
    areas = [unit * size for _, size in row]
    whole = sum(areas)
    return max(max(side**2 * area / whole**2, whole**2 / (side**2 * area)) for area in areas)


def _depth_of(tree: Tree, places: dict[str, int], index: int) -> int:
    depth = 0
    while (parent := places.get(tree.parents[index])) is not None:
        depth, index = depth + 1, parent
    return depth


def _write(value: float | None, unit: str) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.3f}" if unit == "ms" else f"{value:,.0f}"


def _write_share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f}"


def _add_unit(text: str, unit: str) -> str:
    return CANNOT_TELL if text == UNKNOWN else f"{text} {unit}".rstrip()
