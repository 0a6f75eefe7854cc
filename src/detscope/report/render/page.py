"""The page: sections in, one HTML file out; everything that came from outside is escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from detscope.report.model import Absent, Block, Chart, Pipeline, Section, Table, Timeline, Tree
from detscope.report.render.cells import cells_of, row_names
from detscope.report.render.charts.drawing import DrawnChart, Json, draw_chart
from detscope.report.render.timeline import timeline_json
from detscope.runs.standard_json import as_standard_json

_STATIC = Path(__file__).parent / "static"
_ALWAYS = ("report.css", "report.js")
# what a block's template needs beside it: a page carries the files of the blocks it has, and no other
_ASSETS = {
    "chart": ("chart.css", "chart.js"),
    "tree": ("tree.js",),
    "cards": ("picture.js",),
    "timeline": ("timeline.css", "timeline.js"),
}
UNFOLDED_ROWS = 12  # of a table that no picture has told already


def render_page(
    title: str, subtitle: str, sections: Sequence[Section], absent: Sequence[Absent], made: str
) -> str:
    """One file: styles, scripts and data inside; a content policy lets only these scripts run."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_STATIC),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections = [section for section in sections if not section.brief_only]
    blocks = [block for section in sections for block in section.blocks]
    charts = {block.id: draw_chart(block) for block in blocks if isinstance(block, Chart)}
    styles, script = _collect_assets(blocks)
    return environment.get_template("page.html").render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        absent=absent,
        made=made,
        cells_of=cells_of,
        row_names=row_names,
        charts=charts,
        unfolded=_find_unfolded(sections),
        styles=styles,
        script=script,
        data=pack_json(_collect_data(charts, blocks)),
        policy=_write_policy(script),
    )


def pack_json(value: object) -> str:
    """JSON as `unpack.js` reads it; whatever the names in it, they end no element."""
    text = json.dumps(as_standard_json(value), allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _collect_assets(blocks: Sequence[Block]) -> tuple[list[Markup], Markup]:
    """Style sheets and scripts, each once, in the order of their first use; scripts as one."""
    names = dict.fromkeys(_ALWAYS)
    for block in blocks:
        names |= dict.fromkeys(_ASSETS.get(block.template, ()))
        if isinstance(block, Chart) and isinstance(block.content, Tree):
            names |= dict.fromkeys(_ASSETS["tree"])
    texts = {name: Markup((_STATIC / name).read_text(encoding="utf-8")) for name in names}
    styles, scripts = (
        [text for name, text in texts.items() if name.endswith(end)] for end in (".css", ".js")
    )
    unpack = (_STATIC / "unpack.js").read_text(encoding="utf-8")
    begin, end = 'unpack(document.getElementById("data").textContent).then((unpacked) => {\n', "});\n"
    return styles, Markup("".join([unpack, begin, *scripts, end]))


def _collect_data(charts: dict[str, DrawnChart], blocks: Sequence[Block]) -> dict[str, object]:
    """What scripts need beyond the text of the page: values of pictures, figures of tables in full."""
    told = {name: drawn.data for name, drawn in charts.items() if drawn.data is not None}
    figures: dict[str, Json] = {}
    for block in blocks:
        if isinstance(block, Table) and block.full and block.rows:
            columns = [
                [_shorten(row[index]) for row in block.rows]
                if column.kind not in ("text", "code", "sentence")
                else None
                for index, column in enumerate(block.columns)
            ]
            figures[block.id] = columns
    timelines = {block.id: timeline_json(block) for block in blocks if isinstance(block, Timeline)}
    return {"charts": told, "figures": figures, **({"timelines": timelines} if timelines else {})}


def _shorten(value: str | float | None) -> Json:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _find_unfolded(sections: Sequence[Section]) -> set[str]:
    """Tables that are open at first: what a picture above has told already stays folded."""
    found = set()
    for section in sections:
        pictured = False
        for block in section.blocks:
            pictured = pictured or isinstance(block, Chart | Pipeline | Timeline)
            if not isinstance(block, Table) or not block.full:
                continue
            if block.unfolded or (not pictured and len(block.rows) <= UNFOLDED_ROWS):
                found.add(block.id)
    return found


def _write_policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "font-src data:; base-uri 'none'; form-action 'none'"
    )
