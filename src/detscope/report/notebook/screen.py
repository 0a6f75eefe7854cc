"""The first screen of a run as a piece of HTML: no script, nothing to fetch, readable on light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TypeVar

from detscope.analyze.drawing import ReportData
from detscope.analyze.summary import RunSummary
from detscope.parts import parts_of
from detscope.report.colours import GREY, PHASE_COLOURS
from detscope.report.figures import percent, plain, with_unit
from detscope.report.model import Cards, Findings, Section, Suggestion
from detscope.report.sections import SectionPart
from detscope.runs.reader import Run

Shown = TypeVar("Shown", Cards, Findings)
MOST_CARDS = 4
_FAINT = "opacity:.7;font-size:85%"


def render_screen(run: Run, summary: RunSummary) -> str:
    """Verdict, four figures, the step as a bar and the first advice: what the page shows first."""
    first = _find_first_section(ReportData(run, summary))
    cards = [card for block in _blocks(first, Cards) for card in block.cards][:MOST_CARDS]
    findings = [finding for block in _blocks(first, Findings) for finding in block.findings][:1]
    name = (summary.model.name if summary.model else None) or "run"
    title = first.title if first is not None else summary.verdict
    head = " ".join(part for part in (summary.verb, name) if part)
    where = f" on {summary.device}" if summary.device else ""
    ended = (
        ""
        if summary.status == "ok"
        else f" · {summary.status}: {summary.reason or 'it did not end by itself'}"
    )
    pieces = [
        f'<div style="{_FAINT}">{_text(head + where)} · {_text(run.folder.name)}{_text(ended)}</div>',
        f'<div style="font-size:130%;font-weight:600;margin:2px 0 10px">{_text(title)}</div>',
        '<div style="display:flex;flex-wrap:wrap;gap:8px 28px">',
        *(
            f'<div><div style="{_FAINT}">{_text(card.label)}</div>'
            f'<div style="font-size:120%;font-weight:600">{_text(card.value)}</div>'
            f'<div style="{_FAINT}">{_text(card.detail)}</div></div>'
            for card in cards
        ),
        "</div>",
        *_draw_step(summary),
        *(_tell_finding(finding) for finding in findings),
    ]
    return f'<div style="font-family:system-ui,sans-serif;max-width:60em">{"".join(pieces)}</div>'


def _find_first_section(data: ReportData) -> Section | None:
    """The first that has figures to read first; the rest of the page is not made for it."""
    made = (part.make(data) for part in parts_of("sections", SectionPart))
    return next((one for one in made if isinstance(one, Section) and _blocks(one, Cards)), None)


def _blocks(section: Section | None, kind: type[Shown]) -> list[Shown]:
    return [block for block in section.blocks if isinstance(block, kind)] if section is not None else []


def _draw_step(summary: RunSummary) -> Iterator[str]:
    """Phases side by side, each as wide as its share, and beneath them what they are."""
    phases = [phase for phase in summary.phases if phase.share > 0]
    if not phases:
        return
    yield '<div style="display:flex;height:16px;margin:12px 0 4px;max-width:46em">'
    for phase in phases:
        colour = PHASE_COLOURS.get(phase.name, GREY)
        said = f"{phase.name} {with_unit(phase.ms, 'ms')}, {percent(phase.share)}"
        yield f'<div title="{_text(said)}" style="width:{100 * phase.share:.2f}%;background:{colour}"></div>'
    yield "</div>"
    yield f'<div style="{_FAINT}">'
    for phase in phases:
        colour = PHASE_COLOURS.get(phase.name, GREY)
        yield f'<span style="color:{colour}">■</span> {_text(phase.name)} {with_unit(phase.ms, "ms")} '
        yield f"({percent(phase.share)})&ensp;"
    yield "</div>"


def _tell_finding(finding: Suggestion) -> str:
    gain = f", {finding.gain}" if finding.gain else ""
    command = f"<br><code>{_text(finding.command)}</code>" if finding.command else ""
    said = f"<b>{_text(finding.title)}</b>{_text(gain)}: {_text(finding.told)}{command}"
    return f'<div style="margin-top:10px">{said}</div>'


def _text(value: str) -> str:
    return escape(plain(value))
