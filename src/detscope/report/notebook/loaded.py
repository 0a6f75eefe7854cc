"""A run that is opened to be looked into: it says what it has, and gives it by name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import polars as pl

from detscope.analyze.summary import RunSummary, summarize
from detscope.errors import DetscopeError, MachineError
from detscope.report.figures import plain
from detscope.report.notebook.frames import FIGURES, NAMES, RECORDED_BY, frame_figures, frame_steps
from detscope.runs import reader
from detscope.runs.folder import find_run
from detscope.runs.reader import Run
from detscope.runs.schema import TABLES

if TYPE_CHECKING:
    import pandas

WIDTH = 100


@dataclass(frozen=True, repr=False)
class LoadedRun(Run):
    """A run as notebooks and scripts read it: `run.steps`, `run.modules`, ... are polars frames.

    Figures (`steps`, `phases`, `stages`, `modules`, `operators`, `kernels`, `outliers`, `epochs`, `advice`)
    are in milliseconds; every other name is a table of the folder as it is, in nanoseconds.
    """

    @cached_property
    def summary(self) -> RunSummary:
        """All figures of the run, typed; computed when they are first asked for."""
        return summarize(self)

    @cached_property
    def rows(self) -> dict[str, int | None]:
        """How many rows each recorded table has; None where its file is damaged."""
        found = {name: self._count_rows(name) for name in TABLES}
        return {name: count for name, count in found.items() if count != 0}

    @property
    def names(self) -> list[str]:
        """What can be asked for by name: figures first, then the tables as they lie in the folder."""
        figures = [name for name, source in FIGURES.items() if source.table in self.rows]
        return list(dict.fromkeys([*figures, *self.rows]))

    def to_pandas(self, name: str) -> pandas.DataFrame:
        """A frame of `names` for pandas, which has to be installed; pyarrow is not needed."""
        frame = self._read_frame(name)
        try:
            import pandas
        except ImportError:
            raise _with_hint(
                MachineError("pandas is not installed", "install it: pip install pandas")
            ) from None
        return pandas.DataFrame({column: frame[column].to_numpy() for column in frame.columns})

    def __getattr__(self, name: str) -> pl.DataFrame:
        if name.startswith("_"):  # notebooks ask for dozens of these
            raise AttributeError(name)
        return self._read_frame(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.names})

    def __repr__(self) -> str:
        model = (self.info.get("model") or {}).get("name")
        what = " ".join(part for part in (self.info.get("verb"), model) if part) or "a run"
        lines = [plain(f"{what}, {self.status}: {self.folder.name}")]
        lines += [f"  .{name:<10} per {FIGURES[name].rows}" for name in self.names if name in FIGURES]
        counts = {name: "damaged" if rows is None else f"{rows:,}" for name, rows in self.rows.items()}
        said = ", ".join(f"{name}={count}" for name, count in counts.items()) or "none"
        lines += wrap(f"tables and their rows: {said}", WIDTH, initial_indent="  ", subsequent_indent="    ")
        lines.append("  .summary    all figures, typed; .table(NAME) is a table as it was recorded")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from detscope.report.notebook.screen import render_screen

        return render_screen(self, self.summary)

    def _read_frame(self, name: str) -> pl.DataFrame:
        """What is asked for by a name, or in a sentence why it is not there."""
        if name not in NAMES:
            close = get_close_matches(name, [*NAMES, "summary"], n=1)
            meant = f"did you mean {close[0]}?" if close else f"this one has {', '.join(self.names)}"
            raise AttributeError(f"a run has no {name!r}; {meant}")
        source = FIGURES.get(name)
        if source is None:
            frame, missing, answers = self.table(name), RECORDED_BY.get(name, "was not recorded"), False
        else:
            missing, answers = source.missing, source.can_be_empty and source.table in self.rows
            if source.figure is None:
                frame = frame_steps(self)
            else:
                frame = frame_figures(source.take(self.summary), source.figure)
        if not frame.height and not answers:
            raise AttributeError(f"{self.folder.name} has no {name}, which {missing}")
        return frame

    def _count_rows(self, table: str) -> int | None:
        """By the file's own count where it is whole: a run can be larger than what one wants to read."""
        whole = self.folder / f"{table}.parquet"
        try:
            if whole.is_file():
                with whole.open("rb") as file:
                    return int(pl.scan_parquet(file).select(pl.len()).collect().item())
            return self.table(table, [next(iter(TABLES[table]))]).height
        except (DetscopeError, pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
            return None


def load_run(run: str | os.PathLike[str] = "latest", *, runs: str | os.PathLike[str] = "runs") -> LoadedRun:
    """Open a run by its folder, its name or id, or the beginning of it; `latest` is the newest in `runs`."""
    try:
        opened = reader.load_run(find_run(os.fspath(run), Path(runs)))
    except DetscopeError as error:
        raise _with_hint(error) from None
    return LoadedRun(opened.folder, opened.info)


def _with_hint(error: DetscopeError) -> DetscopeError:
    """Outside of the command line nobody prints the hint: a traceback does it then."""
    if error.hint:
        error.add_note(f"hint: {error.hint}")
    return error
