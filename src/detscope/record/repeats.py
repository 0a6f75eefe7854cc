"""Steps that came before: their moments are kept as arrays and become rows when the run is written."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from detscope.record.steps.events import WIDTH
from detscope.record.steps.layouts import Layout, Matrix, span_frame
from detscope.record.steps.nodes import PHASES, NodeTable

_MOST_LAYOUTS = 32
_MOST_SEEN = 10_000


@dataclass(frozen=True)
class KeptStep:
    """A step whose sequence of events has a layout; moments are its begin, its events and its end."""

    index: int
    epoch: int
    mode: str
    with_spans: bool
    moments: Matrix
    device_moments: Matrix | None = None


class RepeatedSteps:
    """Knows sequences of events that came more than once, and keeps their steps until rows are wanted."""

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes = nodes
        self._layouts: OrderedDict[tuple[int, ...], Layout] = OrderedDict()
        self._seen: set[int] = set()
        self._kept: dict[int, tuple[Layout, list[KeptStep]]] = {}

    def layout(self, events: Sequence[int]) -> Layout | None:
        """The layout of a sequence of events; None at its first appearance, which may be its only one."""
        codes = tuple(events[::WIDTH])
        found = self._layouts.get(codes)
        if found is not None:
            self._layouts.move_to_end(codes)
            return found
        key = hash(codes)
        if key not in self._seen:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen.add(key)
            return None
        found = self._layouts[codes] = Layout(codes, self._nodes)
        if len(self._layouts) > _MOST_LAYOUTS:
            self._layouts.popitem(last=False)
        return found

    def keep(self, layout: Layout, step: KeptStep) -> None:
        """Take a step; its rows come with the next `take`."""
        self._kept.setdefault(id(layout), (layout, []))[1].append(step)

    def take(self) -> tuple[list[pl.DataFrame], list[pl.DataFrame], list[tuple[Layout, KeptStep]]]:
        """Frames of `steps` and of `spans`, and the steps that must be replayed because they do not fit."""
        step_frames: list[pl.DataFrame] = []
        span_frames: list[pl.DataFrame] = []
        odd: list[tuple[Layout, KeptStep]] = []
        kept, self._kept = self._kept, {}
        for layout, all_steps in kept.values():
            for on_device in (False, True):
                steps = [step for step in all_steps if (step.device_moments is not None) is on_device]
                if not steps:
                    continue
                host = layout.figures(np.stack([step.moments for step in steps]))
                fits = layout.fits(host)
                odd += [(layout, step) for step, good in zip(steps, fits.tolist(), strict=True) if not good]
                steps = [step for step, good in zip(steps, fits.tolist(), strict=True) if good]
                if not steps:
                    continue
                host = host[fits]
                device = layout.figures(np.stack(_device_moments(steps))) if on_device else None
                step_frames.append(_step_frame(layout, steps, host, device))
                spanned = np.array([step.with_spans for step in steps])
                if spanned.any() and len(layout.spans):
                    numbers = [step.index for step in steps if step.with_spans]
                    below = None if device is None else device[spanned]
                    span_frames.append(span_frame(layout, numbers, host[spanned], below))
        return step_frames, span_frames, odd


def moments_of(events: Sequence[int], start_ns: int, end_ns: int) -> Matrix:
    """The begin of a step, the times of its events and its end."""
    return np.array([start_ns, *events[1::WIDTH], end_ns], np.int64)


def events_of(layout: Layout, moments: Matrix) -> list[int]:
    """The events again."""
    inner = moments[1:-1].tolist()
    return [number for pair in zip(layout.codes, inner, strict=True) for number in (*pair, -1)]


def _device_moments(steps: Sequence[KeptStep]) -> list[Matrix]:
    return [step.device_moments for step in steps if step.device_moments is not None]


def _step_frame(
    layout: Layout, steps: Sequence[KeptStep], host: Matrix, device: Matrix | None
) -> pl.DataFrame:
    """Rows of table `steps`: the whole step and each of its phases."""
    width = 1 + len(PHASES)

    def each(values: list[Any]) -> list[Any]:
        return [value for value in values for _ in range(width)]

    def figures(found: Matrix, moments: list[Matrix]) -> Matrix:
        whole = np.array([step[-1] - step[0] for step in moments], np.int64)
        return np.hstack([whole[:, None], found[:, layout.phases]]).ravel()

    return pl.DataFrame(
        {
            "step": np.repeat(np.array([step.index for step in steps], np.int64), width),
            "epoch": np.repeat(np.array([step.epoch for step in steps], np.int64), width),
            "mode": each([step.mode for step in steps]),
            "phase": ["step", *PHASES] * len(steps),
            "start_ns": np.repeat(np.array([step.moments[0] for step in steps], np.int64), width),
            "wall_ns": figures(host, [step.moments for step in steps]),
            "device_ns": None if device is None else figures(device, _device_moments(steps)),
        },
        schema_overrides={"device_ns": pl.Int64},
    )
