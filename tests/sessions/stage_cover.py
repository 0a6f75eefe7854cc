"""What tests ask of a run's summary: its stages, phases and files by name, and modules without a stage."""

from __future__ import annotations

from pathlib import Path

from detscope.analyze.summary import RunSummary


def stages_ms(summary: RunSummary) -> dict[str, float]:
    """Outermost stages."""
    return {row.name: row.total_ms for row in summary.stages if row.depth == 0}


def phases_ms(summary: RunSummary) -> dict[str, float]:
    """All phases."""
    return {row.name: row.ms for row in summary.phases}


def file_of(summary: RunSummary, name: str) -> Path:
    """A file or folder that the summary names."""
    return Path({file.name: file.path for file in summary.files}[name])


def modules_without_a_stage(summary: RunSummary) -> list[str]:
    """Modules with weights of their own that belong to no stage, themselves or with what they are part of."""
    rows = [row for row in summary.modules if row.kind == "module" and row.path != "(model)"]
    staged = tuple(f"{row.path}." for row in rows if row.stage)
    paths = [f"{row.path}." for row in rows if row.parameters]
    leaves = [path for path in paths if not any(other != path and other.startswith(path) for other in paths)]
    assert leaves and staged
    return [path for path in leaves if not path.startswith(staged)]
