"""The page: sections in, one HTML file out; everything that came from outside is escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from detscope.report.model import Absent, Chart, Section, Timeline
from detscope.report.render.cells import cells_of
from detscope.report.render.plotly import chart_json
from detscope.report.render.timeline import timeline_json
from detscope.runs.standard_json import as_standard_json

_STATIC = Path(__file__).parent / "static"


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
    library, own = _plotly(), (_STATIC / "report.js").read_text(encoding="utf-8")
    charts = {block.id: chart_json(block) for s in sections for block in s.blocks if isinstance(block, Chart)}
    timelines = {b.id: timeline_json(b) for s in sections for b in s.blocks if isinstance(b, Timeline)}
    names = ["timeline"] if timelines else []
    beside = [(_STATIC / f"{name}.js").read_text(encoding="utf-8") for name in names]
    styles = ["report", *names]
    return environment.get_template("page.html").render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        absent=absent,
        made=made,
        cells_of=cells_of,
        style="".join((_STATIC / f"{name}.css").read_text(encoding="utf-8") for name in styles),
        plotly=library,
        script=own,
        data=_json_inside_html(charts),
        timelines=_json_inside_html(timelines) if timelines else "",
        beside=beside,
        policy=_policy(library, own, *beside),
    )


def _json_inside_html(value: object) -> str:
    """JSON that cannot end its script element, whatever the names in it."""
    text = json.dumps(as_standard_json(value), allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plotly() -> str:
    """Plotly's own file; nothing of its Python part is imported."""
    text = files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _policy(*scripts: str) -> str:
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "font-src data:; base-uri 'none'; form-action 'none'"
    )
