"""Steps with the same sequence of events: who owns which interval is worked out once, the rest is sums.

Which node owns the time between two neighbouring events follows from the events' codes alone. So for a
sequence that comes again, phases, self times, totals and stages are sums over fixed sets of intervals, and
many steps are one matrix: a row of moments per step. The figures are those of `replay`, to the nanosecond.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from detscope.record.steps.events import CODE, NO_SEQUENCE, TIME, WIDTH
from detscope.record.steps.nodes import PHASES, NodeTable
from detscope.record.steps.replay import BACKWARD, FORWARD, StepAccount, replay_codes
from detscope.record.steps.schedule import WARMUP

Matrix = NDArray[np.int64]
Places = NDArray[np.intp]


class ColumnGroups:
    """Sums over sets of columns, none of which is empty; a column may be in several sets."""

    def __init__(self, sets: Collection[Sequence[int]]) -> None:
        self._members = np.array([column for columns in sets for column in columns], np.intp)
        self._begins = np.cumsum([0, *map(len, sets)], dtype=np.intp)[:-1]

    def sum_columns(self, values: Matrix) -> Matrix:
        """One column per set."""
        if not len(self._begins):
            return np.zeros((len(values), 0), np.int64)
        return np.asarray(np.add.reduceat(values[:, self._members], self._begins, axis=1))


class SpanRows(NamedTuple):
    """What every step's rows of `spans` have in common, and from which figures the others come."""

    common: pl.DataFrame
    totals: Places
    selves: Places
    positive: Places  # figures that are above zero wherever these are the rows


class StepLayout:
    """One sequence of events; `sum_figures` of many steps at once, and the rows made of them."""

    def __init__(self, codes: Sequence[int], nodes: NodeTable) -> None:
        self.codes = tuple(codes)
        account, closed = replay_codes(self.codes, nodes)
        # intervals by owner, and owners by what they add to: `_share_time` of a replay as sets
        intervals: dict[Any, list[int]] = defaultdict(list)
        for place, piece in enumerate(account.slices):
            intervals[piece.phase, piece.direction, piece.ancestors, piece.stage].append(place)
        quantities: dict[Any, list[int]] = defaultdict(list)
        for owner, (phase, direction, ancestors, stage) in enumerate(intervals):
            quantities["phase", phase].append(owner)
            if not ancestors:
                quantities["outside", phase].append(owner)
                continue
            quantities["self", ancestors[-1], direction].append(owner)
            quantities["stage", stage or "", direction].append(owner)
            if direction == BACKWARD:
                for ancestor in set(ancestors):
                    quantities["total", ancestor].append(owner)
        self._owners, self._quantities = ColumnGroups(intervals.values()), ColumnGroups(quantities.values())
        calls: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
        for key, begin, end in closed:
            calls[key].append((begin, end))
        borders = [border for of_node in calls.values() for border in of_node]
        self._begins = np.array([begin for begin, _ in borders], np.intp)
        self._ends = np.array([end for _, end in borders], np.intp)
        numbers = iter(range(len(borders)))
        self._calls = ColumnGroups([[next(numbers) for _ in of_node] for of_node in calls.values()])
        self._place: dict[Any, int] = {key: place for place, key in enumerate(quantities)}
        self._place |= {("calls", *key): len(quantities) + place for place, key in enumerate(calls)}
        self._nothing = len(self._place)  # a last column of zeros
        self.phases = np.array([self._column_of("phase", phase) for phase in PHASES], np.intp)
        self.spans = self._make_span_rows(account, nodes)

    def _column_of(self, *key: object) -> int:
        return self._place.get(key, self._nothing)

    def sum_figures(self, moments: Matrix) -> Matrix:
        """All sums, from the moments of each step: its begin, its events and its end."""
        # a clock that goes back makes no time, as in `replay`
        lengths = np.diff(np.maximum.accumulate(moments, axis=1), axis=1)
        sums = self._quantities.sum_columns(self._owners.sum_columns(lengths))
        calls = self._calls.sum_columns(moments[:, self._ends] - moments[:, self._begins])
        return np.hstack([sums, calls, np.zeros((len(moments), 1), np.int64)])

    def _make_span_rows(self, account: StepAccount, nodes: NodeTable) -> SpanRows:
        rows: list[tuple[str, str, str, int, int, int]] = []
        positive: list[int] = []
        for number, direction in sorted(set(account.total_ns) | set(account.self_ns)):
            own = self._column_of("self", number, direction)
            total = self._column_of("calls", number, direction)
            if direction == BACKWARD:
                total = self._column_of("total", number)
            if ("calls", number, direction) not in self._place:
                positive.append(total if direction == BACKWARD else own)
            calls = account.calls.get((number, direction), 0)
            rows.append((nodes[number].kind, nodes[number].path, direction, calls, total, own))
        for stage, direction in sorted(account.stages):
            place = self._column_of("stage", stage, direction)
            positive.append(place)
            rows.append(("stage", stage, direction, 1, place, place))
        for direction in (FORWARD, BACKWARD):  # which are the names of their phases too
            place = self._column_of("outside", direction)
            rows.append(("outside", direction, direction, 1, place, place))
        if not account.self_ns:
            rows = []
        names, numbers = dict.fromkeys(("kind", "path", "direction"), pl.String), ("calls", "total", "self")
        table = pl.DataFrame(rows, {**names, **dict.fromkeys(numbers, pl.Int64)}, orient="row")
        totals, selves = (table[column].to_numpy() for column in numbers[1:])
        return SpanRows(table.drop(numbers[1:]), totals, selves, np.array(positive, np.intp))


def make_span_frame(layout: StepLayout, steps: Sequence[int], host: Matrix) -> pl.DataFrame:
    """Rows of table `spans` for steps with these figures."""
    rows = layout.spans
    again = np.tile(np.arange(rows.common.height, dtype=np.uint32), len(steps))
    return pl.DataFrame(
        {
            "step": np.repeat(np.array(steps, np.int64), rows.common.height),
            **rows.common[again].to_dict(),
            "total_ns": host[:, rows.totals].ravel(),
            "self_ns": host[:, rows.selves].ravel(),
            "device_total_ns": None,
            "device_self_ns": None,
        },
        schema_overrides={"device_total_ns": pl.Int64, "device_self_ns": pl.Int64},
    )


_MOST_LAYOUTS = 32
_MOST_SEEN = 10_000


@dataclass(frozen=True)
class KeptStep:
    """A step whose sequence of events has a layout; moments are its begin, its events and its end."""

    index: int
    epoch: int
    mode: str
    moments: Matrix


class RepeatedSteps:
    """Knows sequences of events that came more than once, and keeps their steps until rows are wanted."""

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes = nodes
        self._layouts: OrderedDict[tuple[int, ...], StepLayout] = OrderedDict()
        self._seen: set[int] = set()
        self._kept: dict[int, tuple[StepLayout, list[KeptStep]]] = {}

    def find_layout(self, events: Sequence[int]) -> StepLayout | None:
        """The layout of a sequence of events; None at its first appearance, which may be its only one."""
        codes = tuple(events[CODE::WIDTH])
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
        found = self._layouts[codes] = StepLayout(codes, self._nodes)
        if len(self._layouts) > _MOST_LAYOUTS:
            self._layouts.popitem(last=False)
        return found

    def keep_step(self, layout: StepLayout, step: KeptStep) -> None:
        """Take a step; its rows come with the next `take_frames`."""
        self._kept.setdefault(id(layout), (layout, []))[1].append(step)

    def take_frames(self) -> tuple[list[tuple[str, pl.DataFrame]], list[tuple[StepLayout, KeptStep]]]:
        """Frames of the tables `steps` and `spans`, and steps that must be replayed: they do not fit."""
        frames: list[tuple[str, pl.DataFrame]] = []
        odd: list[tuple[StepLayout, KeptStep]] = []
        kept, self._kept = self._kept, {}
        for layout, steps in kept.values():
            host = layout.sum_figures(np.stack([step.moments for step in steps]))
            # their rows are those of the layout, but that a node which took no time would have none
            fits = np.asarray((host[:, layout.spans.positive] > 0).all(axis=1))
            odd += [(layout, step) for step, good in zip(steps, fits.tolist(), strict=True) if not good]
            steps = [step for step, good in zip(steps, fits.tolist(), strict=True) if good]
            if not steps:
                continue
            host = host[fits]
            frames.append(("steps", _make_step_frame(layout, steps, host)))
            spanned = np.array([step.mode != WARMUP for step in steps])
            if spanned.any() and layout.spans.common.height:
                numbers = [step.index for step in steps if step.mode != WARMUP]
                frames.append(("spans", make_span_frame(layout, numbers, host[spanned])))
        return frames, odd


def moments_of(events: Sequence[int], start_ns: int, end_ns: int) -> Matrix:
    """The begin of a step, the times of its events and its end."""
    return np.array([start_ns, *events[TIME::WIDTH], end_ns], np.int64)


def join_events(layout: StepLayout, moments: Matrix) -> list[int]:
    """The events again."""
    inner = moments[1:-1].tolist()
    return [number for pair in zip(layout.codes, inner, strict=True) for number in (*pair, NO_SEQUENCE)]


def _make_step_frame(layout: StepLayout, steps: Sequence[KeptStep], host: Matrix) -> pl.DataFrame:
    width = 1 + len(PHASES)
    whole = np.array([step.moments[-1] - step.moments[0] for step in steps], np.int64)
    return pl.DataFrame(
        {
            "step": np.repeat(np.array([step.index for step in steps], np.int64), width),
            "epoch": np.repeat(np.array([step.epoch for step in steps], np.int64), width),
            "mode": [step.mode for step in steps for _ in range(width)],
            "phase": ["step", *PHASES] * len(steps),
            "start_ns": np.repeat(np.array([step.moments[0] for step in steps], np.int64), width),
            "wall_ns": np.hstack([whole[:, None], host[:, layout.phases]]).ravel(),
            "device_ns": None,
        },
        schema_overrides={"device_ns": pl.Int64},
    )
