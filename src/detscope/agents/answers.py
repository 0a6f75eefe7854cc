"""What is answered about recorded runs: figures of `analyze/` and sections of `report/`, page by page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from detscope.agents import questions as ask
from detscope.agents.bounds import Answer, Page, Row, Told, fill_page, fit_answer
from detscope.analyze.compare.change import Ends, Verdict
from detscope.analyze.compare.differences import SettingChange
from detscope.analyze.compare.runs import compare_runs
from detscope.analyze.compare.sides import FindingChanges, NamedFinding, RunStability
from detscope.analyze.drawing import ReportData, report_data
from detscope.analyze.figure import Clock, Definition, Figure
from detscope.analyze.findings.finding import Finding
from detscope.analyze.run_list import RunEntry, list_runs
from detscope.analyze.schema import make_schema
from detscope.analyze.step.modules import StageFigures
from detscope.analyze.step.steady import Steadiness
from detscope.analyze.step.steps import PhaseFigures, StepFigures
from detscope.analyze.summary import AcceleratorFacts, DataFacts, ModelFacts
from detscope.errors import UsageError
from detscope.parts import parts_of
from detscope.report.model import Cards, Facts, Findings, Notes, Section, Table
from detscope.report.render.cells import cell_of
from detscope.report.section_list import ALL, find_sections
from detscope.report.sections import SectionPart, make_sections
from detscope.runs.definitions import DEFINITIONS, DEVICE_DEFINITIONS
from detscope.runs.folder import find_run_inside, leads_outside
from detscope.runs.reader import Run, load_run


class RunPage(Page, frozen=True, kw_only=True):
    """Runs of the folder, the newest first."""

    folder: str  # that holds them
    runs: tuple[RunEntry, ...]


class SectionHead(Figure, frozen=True, kw_only=True):
    """A section by its name."""

    name: str  # that the tool section takes
    title: str  # its answer in a sentence


class RunDigest(Answer, frozen=True, kw_only=True):
    """The figures of a run that one reads first."""

    run: str  # its name
    verb: str | None  # train, infer, eval, run, record or import
    rerun: str | None  # the command that does it again
    status: str  # ok, partial, failed, oom_host, oom_device
    reason: str | None  # why it is not ok
    verdict: str  # what limits it, in a sentence
    model: ModelFacts | None
    data: DataFacts | None
    device: str | None  # as torch or the recorded file calls it
    accelerator: AcceleratorFacts | None
    batch_size: int | None  # images per batch
    precision: str | None  # fp32, bf16, ...
    level: str | None  # of recording: bare, phases, modules, ops
    step_ms: StepFigures
    images_per_s: float | None  # of all measured steps, of all ranks
    stability: Steadiness
    phases: list[PhaseFigures]
    findings: tuple[NamedFinding, ...]  # most costly first; the tool findings has them whole
    sections: tuple[SectionHead, ...]  # there are of this run
    stages: list[StageFigures]
    cannot_tell: list[str]  # what is not known, and why
    notes: list[str]  # what else is to be known


class FindingPage(Page, frozen=True, kw_only=True):
    """What a run could change, most costly first."""

    run: str  # its name
    findings: tuple[Finding, ...]


class TextTable(Figure, frozen=True, kw_only=True):
    """Rows as a person reads them."""

    caption: str = ""  # what it shows
    columns: tuple[str, ...]  # their titles, with units
    rows: list[list[str]]  # cells


class SectionPage(Page, frozen=True, kw_only=True):
    """A section of a run's report; rows are counted over all its tables."""

    run: str  # its name
    section: str  # its name
    title: str  # its answer in a sentence
    definition: str  # what is told, and how it was measured
    tables: tuple[TextTable, ...]


class FigureChange(Figure, frozen=True, kw_only=True):
    """One figure before and after; times are ms per step."""

    name: str  # as `compare --fail-if` takes it: step_p50, phase.forward, module.backbone, ...
    before: float | None  # of the base
    after: float | None  # of the later run
    difference: float | None  # after less before
    relative: float | None = None  # after / before - 1
    relative_ci95: Ends | None = None  # its 95 % interval
    verdict: Verdict  # a word only where the interval leaves no room for "no difference"
    why: str | None = None  # why it cannot be told


class ComparisonPage(Page, frozen=True, kw_only=True):
    """A later run against a base: differences that can be told from noise first."""

    base: str  # name of the run before
    other: str  # name of the run after
    verdict: str  # the change of the step in a sentence, with its evidence
    clock: Clock  # of phases, stages and modules
    settings: list[SettingChange]  # what differs in how both were made
    stability: tuple[RunStability, ...]
    notes: list[str]  # what is to be known when reading the figures
    findings: FindingChanges | None  # at lines, that one of the runs has alone; None where one has no census
    changes: tuple[FigureChange, ...]


class DefinitionPage(Page, frozen=True, kw_only=True):
    """What figures mean, and which sections there can be."""

    sections: tuple[str, ...]  # that a run may have
    definitions: tuple[Definition, ...]


def answer_runs(folder: Path, asked: ask.RunsQuestion) -> Told:
    """List runs."""
    entries = list_runs(folder, model=asked.model, device=asked.device, since=asked.since, sort=asked.sort)
    rows = [entry for entry in entries if not leads_outside(folder / entry.name, folder)]
    return _fill(asked, rows, lambda page: RunPage(folder=str(folder), runs=page))


def answer_summary(folder: Path, asked: ask.SummaryQuestion) -> Told:
    """Tell what a run is about."""
    data = _read_data(folder, asked.run)
    own = {"run", "findings", "sections", *Answer.__struct_fields__}
    same = {name: getattr(data.summary, name) for name in RunDigest.__struct_fields__ if name not in own}
    digest = RunDigest(
        run=data.run.folder.name,
        findings=tuple(NamedFinding(id=one.id, claim=one.claim) for one in data.summary.findings),
        sections=tuple(SectionHead(name=one.id, title=one.title) for one in make_sections(data)[0]),
        **same,
    )
    return fit_answer(digest)


def answer_findings(folder: Path, asked: ask.FindingsQuestion) -> Told:
    """Tell what a run could change."""
    data = _read_data(folder, asked.run)
    rows = [
        one for one in data.summary.findings if asked.id in (None, one.id) and asked.rule in (None, one.rule)
    ]
    return _fill(asked, rows, lambda page: FindingPage(run=data.run.folder.name, findings=page))


def answer_section(folder: Path, asked: ask.SectionQuestion) -> Told:
    """Tell one section whole."""
    data = _read_data(folder, asked.run)
    if asked.section == ALL:
        raise UsageError("one section at a time", f"one of {', '.join(_section_names())}")
    (section,) = find_sections(data, [asked.section])
    tables = _list_tables(section)
    rows = [(number, row) for number, table in enumerate(tables) for row in table.rows]

    def make(page: tuple[tuple[int, list[str]], ...]) -> SectionPage:
        parts = groupby(page, key=lambda pair: pair[0])
        return SectionPage(
            run=data.run.folder.name,
            section=asked.section,
            title=section.title,
            definition=section.definition,
            tables=tuple(
                msgspec.structs.replace(tables[number], rows=[row for _, row in part])
                for number, part in parts
            ),
        )

    return _fill(asked, rows, make)


def answer_comparison(folder: Path, asked: ask.CompareQuestion) -> Told:
    """Compare two runs."""
    base, other = (_open_run(folder, name) for name in (asked.base, asked.other))
    (found,) = compare_runs(base, [other]).comparisons
    named = [pair for pair in found.name_figures().items() if pair[0].startswith(asked.figures)]
    same = [name for name in FigureChange.__struct_fields__ if name != "name"]
    rows = [
        FigureChange(name=name, **{field: getattr(change, field) for field in same})
        for name, change in sorted(named, key=lambda pair: not pair[1].is_seen)
    ]

    def make(page: tuple[FigureChange, ...]) -> ComparisonPage:
        return ComparisonPage(
            base=base.folder.name,
            other=other.folder.name,
            verdict=found.verdict,
            clock=found.clock,
            settings=found.settings,
            stability=found.stability,
            notes=found.notes,
            findings=found.findings,
            changes=page,
        )

    return _fill(asked, rows, make)


def answer_definitions(_folder: Path, asked: ask.DefinitionsQuestion) -> Told:
    """Tell what figures mean."""
    known = {**DEFINITIONS, **DEVICE_DEFINITIONS}
    for kind, described in make_schema("summary")["$defs"].items():
        for field, shape in described.get("properties", {}).items():
            if "description" in shape:
                known[f"{kind}.{field}"] = shape["description"]
    word, sections = asked.name.lower(), _section_names()
    found = [(name, text) for name, text in known.items() if word in f"{name}\n{text}".lower()]
    rows = [Definition(name=name, text=text) for name, text in found]
    return _fill(asked, rows, lambda page: DefinitionPage(sections=sections, definitions=page))


def _fill(asked: ask.PageQuestion, rows: Sequence[Row], make: Callable[[tuple[Row, ...]], Page]) -> Told:
    return fill_page(lambda page: make(tuple(page)), rows, asked.offset, asked.limit)


def _open_run(folder: Path, name: str) -> Run:
    return load_run(find_run_inside(name, folder))


def _read_data(folder: Path, name: str) -> ReportData:
    return report_data(_open_run(folder, name))


def _section_names() -> tuple[str, ...]:
    return tuple(part.name for part in parts_of("sections", SectionPart))


def _list_tables(section: Section) -> list[TextTable]:
    """What a section tells as rows; charts stand above tables of the same figures."""
    found = []
    for block in section.blocks:
        if isinstance(block, Table) and block.full:
            titles = tuple(column.title for column in block.columns)
            rows = [
                [cell_of(value, column).text for value, column in zip(row, block.columns, strict=True)]
                for row in block.rows
            ]
            found.append(TextTable(caption=block.caption, columns=titles, rows=rows))
        elif isinstance(block, Facts) and block.full:
            rows = [[fact.label, fact.text] for fact in block.facts]
            found.append(TextTable(columns=("what", "text"), rows=rows))
        elif isinstance(block, Cards):
            rows = [[card.label, card.value, card.detail] for card in block.cards]
            found.append(TextTable(columns=("what", "value", "detail"), rows=rows))
        elif isinstance(block, Findings):
            rows = [[one.title, one.told, one.gain, one.command] for one in block.findings]
            found.append(TextTable(columns=("change", "evidence", "gain", "command"), rows=rows))
        elif isinstance(block, Notes):
            found.append(TextTable(columns=("note",), rows=[[text] for text in block.sentences]))
    return found
