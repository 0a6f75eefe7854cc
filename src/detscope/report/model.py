"""What can be told, as data: sections of facts, tables, charts, cards and findings.

A section says what is told and what of it is brief; renderers say how it looks. No renderer knows a
figure, no section knows a renderer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from detscope.analyze.timeline.figures import RunTimeline

Kind = Literal["text", "code", "ms", "share", "change", "count", "bytes", "number", "score", "sentence"]
Tone = Literal["", "good", "warn", "bad", "strong"]
Value = str | float | int | None
BRIEF_ROWS = 10
CARDS_IN_A_ROW = 5
SEARCHED_ROWS = 12  # from which on a table can be searched


@dataclass(frozen=True)
class Column:
    """A column of a table; the kind decides about alignment, digits and unit."""

    title: str
    kind: Kind = "text"
    brief: bool = True  # whether a terminal shows it
    bar: bool = False  # a share that is drawn as well, laid end to end with those above it


@dataclass(frozen=True)
class Table:
    """Rows of figures."""

    id: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    searchable: bool = False  # also sortable; for tables that nobody reads from top to bottom
    depth: Sequence[int] = ()  # indentation of the first column
    tones: Sequence[Tone] = ()  # of the rows, where a terminal has colours
    brief_rows: int = 0  # how many a terminal shows; of 0 it shows nothing
    full: bool = True  # whether a page shows it
    unfolded: bool = False  # on a page however long it is
    template: str = "table"


def make_table(
    id: str, caption: str, rows: Sequence[msgspec.Struct], fields: Mapping[str, Column], brief_rows: int = 0
) -> Table:
    """A table whose columns are fields of its rows; a long one can be searched."""
    body = [[getattr(row, name) for name in fields] for row in rows]
    searchable = len(body) > SEARCHED_ROWS
    return Table(id, caption, list(fields.values()), body, searchable=searchable, brief_rows=brief_rows)


@dataclass(frozen=True)
class Fact:
    """A word, and what is to be said about it."""

    label: str
    text: str
    tone: Tone = ""
    stays: bool = False  # where a terminal has no room for all: a verdict, a gate, what to type next


@dataclass(frozen=True)
class Facts:
    """Facts, one beneath the other; a terminal shows them if `brief`, a page if `full`."""

    facts: Sequence[Fact]
    brief: bool = True
    full: bool = True
    template: str = "facts"


@dataclass(frozen=True)
class Axis:
    """What is measured along one side of a chart."""

    title: str = ""
    scale: Literal["linear", "log", "names"] = "linear"
    lowest: float | None = None
    highest: float | None = None
    hidden: bool = False
    falling: bool = False  # the first name on top
    ticks: Sequence[float] = ()  # values to write, else round ones


@dataclass(frozen=True)
class Series:
    """Values that belong together; of bars, `x` holds the values and `y` the names."""

    name: str
    x: Sequence[float | str]
    y: Sequence[float | str | None]
    colour: str | Sequence[str]  # several: one per value
    look: Literal["lines", "points", "both", "bars", "area"] = "lines"
    symbol: Literal["circle", "cross", "diamond", "triangle"] = "circle"
    dash: Literal["solid", "dot", "dash", "dashdot"] = "solid"
    width: float = 2
    texts: Sequence[str] = ()  # written inside each bar, above each point
    details: Sequence[str] = ()  # said of each value when one points at it
    error_up: Sequence[float] = ()
    error_down: Sequence[float] = ()
    hollow: Sequence[bool] = ()  # points to be read with care
    steps: bool = False  # a value holds until the next one
    on_right: bool = False  # measured by the axis on the right
    silent: bool = False  # nothing is said when one points at it


@dataclass(frozen=True)
class Tree:
    """Parts of a whole and their parts; a value is a part's own, without those below it.

    Trees that are choices of one chart have the same parts.
    """

    ids: Sequence[str]
    labels: Sequence[str]
    parents: Sequence[str]
    values: Sequence[float | None]  # None: not known, drawn without a size of its own
    colours: Sequence[str]
    unit: str = ""
    whole: str = "the whole"  # what shares are of
    shape: Literal["icicle", "treemap"] = "icicle"
    totals: Sequence[float | None] = ()  # of parts with those below them, as they are told; else sums
    shares: Sequence[float | None] = ()  # of the whole, as they are told; else of the sum
    details: Sequence[str] = ()  # said of each part in the place of total, self and share


@dataclass(frozen=True)
class Mark:
    """An upright line through the chart, with its word."""

    at: float
    text: str = ""


@dataclass(frozen=True)
class Chart:
    """A picture of figures; the table with them stands beneath it."""

    id: str
    label: str  # what it shows, for those who cannot see it
    content: Sequence[Series] | Tree
    x: Axis = Axis()
    y: Axis = Axis()
    right: Axis | None = None
    bars: Literal["stack", "group"] = "stack"
    marks: Sequence[Mark] = ()
    height: int = 320
    choices: Sequence[tuple[str, Sequence[Series] | Tree]] = ()  # other contents to switch to
    legend: Literal["top", "bottom", "none"] = "top"
    file: str = ""  # the name of its picture file, where there is to be one
    template: str = "chart"


@dataclass(frozen=True)
class Timeline:
    """Steps to look into; a table with their longest spans stands beneath it."""

    id: str
    label: str  # what it shows, for those who cannot see it
    content: RunTimeline
    colours: Sequence[str]  # of the content's groups
    categories: Mapping[str, str]  # colours of categories of memory, from the ground up
    template: str = "timeline"


@dataclass(frozen=True)
class Card:
    """One figure that is read first."""

    label: str
    value: str
    detail: str = ""
    tone: Tone = ""


@dataclass(frozen=True)
class Cards:
    """The figures that are read first."""

    cards: Sequence[Card]
    brief: bool = False
    template: str = "cards"

    @property
    def columns(self) -> int:
        """In one row, or in rows as even as can be: at seven four and three, never six and one."""
        rows = -(-len(self.cards) // CARDS_IN_A_ROW) or 1
        return -(-len(self.cards) // rows)


@dataclass(frozen=True)
class Suggestion:
    """Something to change: what, why, what it could save, and the command that tries it."""

    title: str
    evidence: str
    gain: str = ""
    command: str = ""
    place: str = ""  # a line of code, as it stands there

    @property
    def told(self) -> str:
        """Place and evidence, for those who have one paragraph for both."""
        return " · ".join(part for part in (self.place, self.evidence) if part)


@dataclass(frozen=True)
class Findings:
    """What to change, largest first."""

    findings: Sequence[Suggestion]
    brief: bool = True  # whether a terminal shows them
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
    brief: bool = False
    template: str = "notes"


Block = Table | Chart | Timeline | Facts | Cards | Findings | Pipeline | Pictures | Notes


@dataclass(frozen=True)
class Section:
    """One question and its answer."""

    id: str
    short: str  # in the navigation
    title: str  # the answer
    definition: str
    blocks: Sequence[Block]
    brief_title: bool = False  # whether a terminal prints the answer too
    brief_only: bool = False  # whether a page leaves it out


@dataclass(frozen=True)
class Absent:
    """A section without data says why."""

    short: str
    why: str
