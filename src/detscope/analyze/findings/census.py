"""The census of a run: waits, copies and launches per step, by kind and by line."""

from __future__ import annotations

import polars as pl

from detscope.analyze.figure import Figure
from detscope.analyze.step.beside import CodePlace

WAITS = ("read", "size", "copy")  # kinds in which the host waits for the device
_KEY = ("phase", "kind", "what", "file", "line", "function", "own_file", "own_line", "own_function")


class CensusCount(Figure, frozen=True, kw_only=True):
    """How often something of a kind happens in a step."""

    kind: str  # read, size, copy, feed, index, launch, ...
    count: float  # per step, median of the census steps
    lowest: int  # of the census steps
    highest: int  # of the census steps


class CensusPlace(Figure, frozen=True, kw_only=True):
    """What happens at a line of code, of one kind."""

    kind: str  # read, size, copy, feed, index, launch, ...
    what: str  # operator or method
    phase: str  # of the step
    where: CodePlace  # innermost line outside of torch
    own: CodePlace  # the script's own line
    count: float  # per step, mean over the census steps
    in_call: int  # the most within one call of the function: loops show here
    host_ms: float  # in these operators, per step
    host_low_ms: float  # lowest of the census steps
    host_high_ms: float  # highest of the census steps
    bytes: float  # moved or made, per step
    code: str  # text of the line
    around: str  # check, loop, comprehension, or nothing
    detail: str  # `key=value` words of the pattern that saw it
    rows: int  # of the table
    steps: tuple[int, ...]  # in which it was seen

    @property
    def facts(self) -> dict[str, str]:
        """The words of `detail`."""
        return dict(word.split("=", 1) for word in self.detail.split() if "=" in word)


class CensusFigures(Figure, frozen=True, kw_only=True):
    """What the host would wait for and launch in a step."""

    steps: tuple[int, ...]  # that were counted
    counts: tuple[CensusCount, ...]  # by kind
    waits: float  # of the host for the device, per step
    places: tuple[CensusPlace, ...]  # waits first, then by count
    on_device: bool  # whether a device ran it; else it is told from the operators where it would wait


def census_figures(table: pl.DataFrame, on_device: bool) -> CensusFigures | None:
    """None where nothing was counted."""
    if not table.height:
        return None
    steps = tuple(sorted(table["step"].unique().to_list()))
    kinds = table.group_by("step", "kind").agg(pl.col("count").sum())
    counts = []
    for kind in sorted(kinds["kind"].unique().to_list()):
        seen = {
            row["step"]: row["count"] for row in kinds.filter(pl.col("kind") == kind).iter_rows(named=True)
        }
        numbers = sorted(seen.get(step, 0) for step in steps)
        counts.append(CensusCount(kind=kind, count=_median(numbers), lowest=numbers[0], highest=numbers[-1]))
    places = sorted(_read_places(table, steps), key=lambda one: (one.kind not in WAITS, -one.count))
    waits = sum(one.count for one in counts if one.kind in WAITS)
    return CensusFigures(
        steps=steps, counts=tuple(counts), waits=waits, places=tuple(places), on_device=on_device
    )


def _read_places(table: pl.DataFrame, steps: tuple[int, ...]) -> list[CensusPlace]:
    found = []
    for key, rows in table.group_by(*_KEY, "detail", maintain_order=True):
        named = dict(zip((*_KEY, "detail"), key, strict=True))
        by_step = rows.group_by("step").agg(pl.col("host_ns").sum())["host_ns"].to_list()
        times = [*by_step, *[0] * (len(steps) - len(by_step))]
        found.append(
            CensusPlace(
                kind=named["kind"],
                what=named["what"],
                phase=named["phase"],
                where=CodePlace(function=named["function"] or "", file=named["file"], line=named["line"]),
                own=CodePlace(
                    function=named["own_function"] or "",
                    file=named["own_file"] or named["file"],
                    line=named["own_line"] or named["line"],
                ),
                count=float(rows["count"].sum()) / len(steps),
                in_call=int(rows["in_call"].max() or 0),  # type: ignore[arg-type]
                host_ms=sum(times) / len(steps) / 1e6,
                host_low_ms=min(times) / 1e6,
                host_high_ms=max(times) / 1e6,
                bytes=float(rows["bytes"].sum() or 0) / len(steps),
                code=rows["code"][0] or "",
                around=rows["around"][0] or "",
                detail=named["detail"] or "",
                rows=rows.height,
                steps=tuple(sorted(rows["step"].unique().to_list())),
            )
        )
    return found


def _median(numbers: list[int]) -> float:
    middle = len(numbers) // 2
    return float(numbers[middle]) if len(numbers) % 2 else (numbers[middle - 1] + numbers[middle]) / 2
