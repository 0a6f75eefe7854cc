"""The objects of the synthetic pictures: outlines, colours and points on the outline."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Outline = npt.NDArray[np.float64]  # [N, 2] of x, y

KEYPOINT_COUNT = 17  # as people in COCO, so that a Keypoint R-CNN keeps its own head


@dataclass(frozen=True)
class ShapeClass:
    """A class of objects: its name, colour and outline of radius 1, first corner on top."""

    name: str
    colour: tuple[int, int, int]
    outline: Outline


def _regular(corners: int, turn: float = 0.0) -> Outline:
    angles = 2 * math.pi * (np.arange(corners) + turn) / corners - math.pi / 2
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _star(points: int, inner: float) -> Outline:
    outline = _regular(2 * points)
    outline[1::2] *= inner
    return outline


def _cross(arm: float) -> Outline:
    a, b = arm, math.sqrt(1 - arm * arm)
    corners = [(-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b), (-a, b), (-a, a), (-b, a)]
    return np.array([*corners, (-b, -a), (-a, -a)])


CLASSES = (
    ShapeClass("circle", (214, 48, 49), _regular(32)),
    ShapeClass("square", (41, 98, 214), _regular(4, turn=0.5)),
    ShapeClass("triangle", (38, 166, 65), _regular(3)),
    ShapeClass("star", (240, 200, 30), _star(5, inner=0.42)),
    ShapeClass("cross", (160, 60, 190), _cross(0.3)),
)


def placed(shape: ShapeClass, centre: tuple[float, float], radius: float, turn_radians: float) -> Outline:
    """The outline at its place in the picture."""
    cos, sin = math.cos(turn_radians), math.sin(turn_radians)
    rotated = shape.outline @ np.array([[cos, sin], [-sin, cos]])
    return np.asarray(rotated * radius + np.array(centre))


def points_along(outline: Outline, count: int = KEYPOINT_COUNT) -> Outline:
    """Points at equal distances along the closed outline, from its first corner on."""
    closed = np.vstack([outline, outline[:1]])
    distance = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(closed, axis=0).T))])
    wanted = distance[-1] * np.arange(count) / count
    return np.stack([np.interp(wanted, distance, closed[:, axis]) for axis in (0, 1)], axis=1)


def area_inside(outline: Outline) -> float:
    """Area of a polygon, by the shoelace formula."""
    x, y = outline[:, 0], outline[:, 1]
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2
