"""The events of a profile by role, as columns: numbers in arrays, every name once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detscope.traces.naming import DEVICE_ROLES
from detscope.traces.nesting import NestedIntervals, Numbers, ThreadAxis, make_axis

Flags = NDArray[np.bool_]


class ValueNumbers(dict[Any, int]):
    """Numbers for values, in the order in which they are first seen."""

    def __missing__(self, value: Any) -> int:
        self[value] = number = len(self)
        return number


@dataclass
class EventColumns:
    """All events of one role."""

    start_ns: Numbers
    wall_ns: Numbers
    name: NDArray[np.int32]
    thread: NDArray[np.int32]
    extra: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Numbers:
        """When each ended."""
        return self.start_ns + self.wall_ns

    def take_rows(self, which: Any) -> EventColumns:
        """Some of the events."""
        extra = {name: values[which] for name, values in self.extra.items()}
        return EventColumns(
            self.start_ns[which], self.wall_ns[which], self.name[which], self.thread[which], extra
        )

    def get_extra(self, name: str) -> Any:
        """A column of arguments; of integers, -1 where there is none."""
        return self.extra[name] if name in self.extra else np.full(len(self), -1, np.int64)

    def drop_extra(self) -> EventColumns:
        """The events without their arguments."""
        return EventColumns(self.start_ns, self.wall_ns, self.name, self.thread)


def join_columns(*parts: EventColumns) -> EventColumns:
    """Events of several roles; a column that one of them lacks is -1 there, or no number."""
    parts = tuple(part for part in parts if len(part))
    if len(parts) == 1:
        return parts[0]
    if not parts:
        empty, narrow = np.empty(0, np.int64), np.empty(0, np.int32)
        return EventColumns(empty, empty, narrow, narrow)
    extras = {name: values.dtype for part in parts for name, values in part.extra.items()}
    return EventColumns(
        np.concatenate([part.start_ns for part in parts]),
        np.concatenate([part.wall_ns for part in parts]),
        np.concatenate([part.name for part in parts]),
        np.concatenate([part.thread for part in parts]),
        {
            name: np.concatenate([_fill_extra(part, name, kind) for part in parts])
            for name, kind in extras.items()
        },
    )


def _fill_extra(part: EventColumns, name: str, kind: np.dtype[Any]) -> Any:
    if name in part.extra:
        return part.extra[name]
    return np.full(len(part), np.nan if kind.kind == "f" else -1, kind)


@dataclass(frozen=True)
class TraceEvents:
    """Events by what they are. Names and threads are numbers into the lists."""

    names: list[str]
    threads: list[tuple[Any, Any]]  # process and thread
    shapes: list[str]  # of operators' inputs: 2x3x8, 4
    stacks: list[str]
    device: EventColumns  # extra column "kind": index into DEVICE_ROLES
    device_annotations: EventColumns
    runtime: EventColumns
    operators: EventColumns  # extra columns "sequence", and "forward": the thread that made the autograd node
    annotations: EventColumns
    python: EventColumns
    memory: EventColumns
    own: dict[str, EventColumns]  # what detscope itself has written into it
    axis: ThreadAxis

    @property
    def is_work(self) -> Flags:
        """For each event of the device: whether the device did something, and did not only wait."""
        return np.asarray(self.device.get_extra("kind") != DEVICE_ROLES.index("sync"))

    def check_names(self, columns: EventColumns, test: Callable[[str], object]) -> Flags:
        """For each event: whether the test holds for its name; each name is tested once."""
        return check_names(self.names, columns, test)

    def map_names(self, columns: EventColumns, function: Callable[[str], Any]) -> list[Any]:
        """The function's value for the name of each event; each name is asked once."""
        values = {code: function(self.names[code]) for code in np.unique(columns.name).tolist()}
        return [values[code] for code in columns.name.tolist()]

    def nest_events(self, columns: EventColumns) -> NestedIntervals:
        """The events as intervals that nest on their threads."""
        return NestedIntervals(self.axis, columns.thread, columns.start_ns, columns.wall_ns)


def check_names(names: list[str], columns: EventColumns, test: Callable[[str], object]) -> Flags:
    """For each event: whether the test holds for its name."""
    used = np.unique(columns.name)
    answers = np.zeros(len(names), bool)
    answers[used] = [bool(test(names[code])) for code in used.tolist()]
    return answers[columns.name]


def gather_events(
    columns: dict[str, EventColumns],
    names: list[str],
    threads: list[tuple[Any, Any]],
    shapes: list[str],
    stacks: list[str],
    own: dict[str, EventColumns] | None = None,
) -> TraceEvents:
    """Columns by role, as a reader has sorted them, with one axis of time for all."""

    def take_role(role: str) -> EventColumns:
        return columns.pop(role, join_columns())

    own = own or {}
    on_device = [take_role(role) for role in DEVICE_ROLES]
    for index, part in enumerate(on_device):
        part.extra["kind"] = np.full(len(part), index, np.int8)
    device = join_columns(*on_device)
    hosts = [take_role(role) for role in ("runtime", "operator", "annotation", "python")]
    timed = join_columns(*[part.drop_extra() for part in (*hosts, *own.values())])
    runtime, operators, annotations, python = hosts
    return TraceEvents(
        names=names,
        threads=threads,
        shapes=shapes,
        stacks=stacks,
        device=device.take_rows(np.argsort(device.start_ns, kind="stable")),
        device_annotations=take_role("device annotation"),
        runtime=runtime,
        operators=operators,
        annotations=annotations,
        python=python,
        memory=take_role("memory"),
        own=own,
        axis=make_axis(timed.start_ns, timed.end_ns, len(threads)),
    )
