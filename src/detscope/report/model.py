"""What a page is made of: sections of charts, tables, cards and pictures, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["text", "code", "ms", "share", "count", "bytes", "number", "sentence"]


@dataclass(frozen=True)
class Column:
    """A column of a table; the kind decides about alignment, digits and unit."""

    title: str
    kind: Kind = "text"


@dataclass(frozen=True)
class Table:
    """Rows of figures; `bar` names a share column that is drawn behind its text."""

    id: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    searchable: bool = False  # also sortable; for tables that nobody reads from top to bottom
    depth: Sequence[int] = ()  # indentation of the first column
    template: str = "table"


@dataclass(frozen=True)
class Chart:
    """A plotly figure; its table stands beneath it."""

    id: str
    label: str  # what it shows, for those who cannot see it
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any] = field(default_factory=dict)
    height: int = 320
    choices: Sequence[tuple[str, Sequence[Mapping[str, Any]]]] = ()  # other traces to switch to
    template: str = "chart"


@dataclass(frozen=True)
class Card:
    """One figure that is read first."""

    label: str
    value: str
    detail: str = ""
    tone: Literal["", "good", "warn", "bad"] = ""


@dataclass(frozen=True)
class Cards:
    """The figures that are read first."""

    cards: Sequence[Card]
    template: str = "cards"


@dataclass(frozen=True)
class Finding:
    """Something to change: what, why, what it could save, and the command that tries it."""

    title: str
    evidence: str
    gain: str = ""
    command: str = ""


@dataclass(frozen=True)
class Findings:
    """Findings, largest first."""

    findings: Sequence[Finding]
    template: str = "findings"


@dataclass(frozen=True)
class PipeStage:
    """A station between image and boxes; `forward` and `backward` are shares of the longest."""

    name: str
    forward: float
    backward: float
    text: str
    parts: Sequence[str] = ()


@dataclass(frozen=True)
class Pipeline:
    """Stations in the order in which a detector passes them."""

    label: str
    stages: Sequence[PipeStage]
    template: str = "pipeline"


@dataclass(frozen=True)
class Pictures:
    """Pictures as data addresses, with their names."""

    pictures: Sequence[tuple[str, str]]  # caption, data address
    template: str = "pictures"


@dataclass(frozen=True)
class Notes:
    """Sentences, one beneath the other."""

    sentences: Sequence[str]
    template: str = "notes"


Block = Table | Chart | Cards | Findings | Pipeline | Pictures | Notes


@dataclass(frozen=True)
class Section:
    """One question and its answer."""

    id: str
    short: str  # in the navigation
    title: str  # the answer
    definition: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Absent:
    """A section without data says why."""

    short: str
    why: str
