"""What the host would wait for and launch in a step, by kind and by line."""

from __future__ import annotations

from detscope.analyze.drawing import ReportData
from detscope.analyze.findings.census import MOST_PLACES, CensusFigures
from detscope.analyze.findings.listing import census_command
from detscope.report.blocks.suggestions import place_text
from detscope.report.figures import number
from detscope.report.model import SEARCHED_ROWS, Absent, Column, Section, Table, make_table
from detscope.report.sections import SectionPart

KINDS = {
    "read": "the host reads a value: item, bool, int, float, equal",
    "size": "a size that the device alone knows: nonzero, masks, unique, nms",
    "copy": "a copy to the host: cpu, numpy, tolist",
    "feed": "a copy to the device",
    "index": "a tensor of the device indexed by one of the host",
    "launch": "an operator on the device",
    "allocation": "memory that the driver was asked for",
    "suppression": "a suppression of boxes",
    "layer": "a layer with trained weights",
    "average": "weights averaged tensor by tensor",
    "fill": "memory written before its use: deterministic algorithms were asked for",
    "clone": "a copy that autograd makes before an in-place operator",
    "padding": "rows that fill a tensor of boxes up",
    "scaling": "gradients scaled although nothing was computed in float16",
    "cdist": "distances of all pairs",
    "diagonal": "costs between images, of which each image's own are taken",
    "mask_again": "a mask that indexes a second time",
}
_DEFINITION = (
    "Per step, of steps of their own that no time is taken from. The line is the innermost outside of torch;"
    " read, size and copy are waits of the host for the device."
)
_COLUMNS = (
    Column("line", "code"),
    Column("kind"),
    Column("what", "code"),
    Column("per step", "count"),
    Column("in one call", "count", brief=False),
    Column("ms here", "ms", brief=False),
    Column("bytes", "bytes", brief=False),
    Column("code", "code", brief=False),
    Column("called from", "code", brief=False),
    Column("phase", brief=False),
)


def section(data: ReportData) -> Section | Absent | None:
    """Totals by kind, and the places."""
    census = data.summary.census
    if census is None:
        how = census_command(data.summary)
        return Absent("Census", f"waits for the device and launches were not counted: {how}") if how else None
    fields = {
        "kind": Column("kind"),
        "count": Column("per step", "count"),
        "lowest": Column("lowest", "count"),
        "highest": Column("highest", "count"),
    }
    kinds = make_table("census-kinds", "By kind", census.counts, fields)
    meant = [[*row, KINDS.get(str(row[0]), "")] for row in kinds.rows]
    totals = Table(kinds.id, kinds.caption, [*kinds.columns, Column("meaning", "sentence")], meant)
    return Section("census", "Census", _title(census), _DEFINITION, [totals, _places_table(census)])


def _title(census: CensusFigures) -> str:
    waits, launches = number(census.waits, 0), number(census.find_count("launch"), 0)
    waiting, launching = ("waits", "launches") if census.on_device else ("would wait", "launch")
    times = "time" if census.waits == 1 else "times"
    return f"The host {waiting} for the device {waits} {times} and {launching} {launches} operators per step"


def _places_table(census: CensusFigures) -> Table:
    shown = census.places[:MOST_PLACES]
    left = len(census.places) - len(shown)
    rows: list[list[str | float | None]] = [
        [
            place_text(place.where),
            place.kind,
            place.what,
            place.count,
            place.in_call,
            place.host_ms,
            place.bytes,
            place.code or None,
            None if place.own == place.where else place_text(place.own),
            place.phase,
        ]
        for place in shown
    ]
    caption = "Places, waits first"
    caption += f"; {left} more are in the table `census` of the run" if left else ""
    return Table("census-places", caption, _COLUMNS, rows, searchable=len(rows) > SEARCHED_ROWS)


PART = SectionPart("census", 95, section, unasked=("eval", "import"))
