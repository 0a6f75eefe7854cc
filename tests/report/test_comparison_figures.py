"""What a comparison prints: change, interval and verdict of a row never contradict each other."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from detscope.analyze.compare.change import Sample, sample_median
from detscope.analyze.compare.figures import RunFigures
from detscope.analyze.compare.runs import gather_comparisons
from detscope.analyze.compare.series import RunSeries
from detscope.analyze.compare.sides import compare_sides
from detscope.analyze.compare.variation import GroupVariation, MachineVariation
from detscope.analyze.step.steady import judge_steadiness
from detscope.report.model import Table
from detscope.report.render.cells import cells_of
from detscope.report.verbs.comparison import comparison_sections
from detscope.report.verbs.comparison_markdown import comparison_comment
from detscope.runs.reader import Run

PAIRS = 1000
_UNITS = {"": 1.0, "bytes": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_INTERVAL = re.compile(r"^([+-][\d.]+) % to (over )?([+-][\d.]+) %$")
_RISEN, _FALLEN = {"slower", "more", "better"}, {"faster", "less", "worse"}


def random_times(random: np.random.Generator, typical: float, spread: float, steps: int) -> dict[int, float]:
    mood = 1 + 0.05 * np.sin(np.arange(steps) / 7 + random.uniform(0, 6))
    return dict(enumerate(typical * mood * np.exp(random.normal(0, spread, steps))))


def random_figures(
    random: np.random.Generator, name: str, sizes: dict[str, float], spread: float
) -> RunFigures:
    """A run as it comes out of its tables: of other sizes, spreads and numbers of steps each time."""
    steps = int(random.integers(3, 60)) if random.random() < 0.3 else int(random.integers(90, 130))
    modules = {path: random_times(random, size, spread, steps) for path, size in sizes.items()}
    step = {number: sum(times[number] for times in modules.values()) for number in range(steps)}
    series = RunSeries(
        step=step,
        phases={"forward": step},
        stages={},
        modules=modules,
        content={number: str(number) for number in step} if random.random() < 0.5 else {},
        steadiness=judge_steadiness(list(step.values())),
    )
    medians = {path: cast(Sample, sample_median(times)) for path, times in modules.items()}
    counts = {
        "peak": Sample(float(round(random.uniform(1e3, 1e11)))),
        "process": Sample(random.uniform(1e8, 1e9)),
    }
    return RunFigures(
        run=Run(Path(name), {"status": "ok"}),
        series=series,
        summary=cast(Any, SimpleNamespace(census=None)),
        p50=sample_median(step),
        p95=None,
        images_per_s=Sample(2e3 / float(np.median(list(step.values())))),
        phases={"forward": cast(Sample, sample_median(step))},
        modules=medians,
        operators={"aten::add": Sample(random.uniform(0.001, 50.0))},
        device={"utilisation": Sample(random.uniform(0.01, 1.0))},
        memory=counts,
        accuracy={"AP": Sample(random.uniform(0.0, 0.7))},
    )


def printed_rows(blocks) -> list[dict[str, str]]:
    tables = [block for block in blocks if isinstance(block, Table) and block.columns[-1].title == "verdict"]
    return [
        {column.title: cell.text for column, cell in zip(table.columns, cells, strict=True)}
        for table in tables
        for cells in cells_of(table)
    ]


def read_figure(text: str) -> float:
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * _UNITS[unit]


def count_digits(text: str) -> int:
    return len(re.sub(r"\D", "", text.partition(" ")[0]).lstrip("0"))


def check_row(row: dict[str, str]) -> None:
    verdict = row["verdict"]
    if row["change"] == "n/a":
        assert verdict.startswith(("cannot tell", "new", "gone")), row
        return
    before, after = read_figure(row["before"]), read_figure(row["after"])
    assert min(count_digits(row["before"]), count_digits(row["after"])) >= 4, row
    change = float(row["change"].removesuffix(" %"))
    assert abs(change - 100 * (after / before - 1)) <= 0.05 + 1e-6, row
    assert change >= -100, row
    if row["95 % interval"] == "exact":
        assert verdict == ("no difference seen" if abs(change) == 0 else verdict), row
        return
    if not row["95 % interval"]:
        assert verdict.startswith("cannot tell"), row
        return
    found = _INTERVAL.match(row["95 % interval"])
    assert found, row
    low, high = float(found[1]), math.inf if found[2] else float(found[3])
    assert -100 <= low <= change <= high, row
    if verdict.startswith("cannot tell: below"):
        return
    if low <= 0 <= high:
        assert verdict == "no difference seen", row
    elif verdict.startswith("no difference seen"):
        assert "corrected" in verdict, row
    else:
        rose = verdict in _RISEN if "per second" not in row["name"] else verdict == "faster"
        fell = verdict in _FALLEN if "per second" not in row["name"] else verdict == "slower"
        assert rose if low > 0 else fell, row


def test_of_1000_random_pairs_every_printed_row_agrees_with_itself() -> None:
    random = np.random.default_rng(18)
    seen: dict[str, int] = {}
    for _ in range(PAIRS):
        sizes = {f"block{number}.conv": float(10 ** random.uniform(-2, 3)) for number in range(4)}
        changed = dict(sizes)
        if random.random() < 0.6:
            changed["block0.conv"] *= float(10 ** random.uniform(-1.5, 1.5))
        spread = float(random.choice([0.002, 0.02, 0.1, 0.4]))
        known = MachineVariation(machine="m", groups=(GroupVariation(group="step", factor=0.2, freedom=9.0),))
        count = 1 if random.random() < 0.7 else 3
        before, after = (
            [random_figures(random, f"{name}{number}", own, spread) for number in range(count)]
            for name, own in (("before", sizes), ("after", changed))
        )
        result = gather_comparisons(before[0].run, [compare_sides(before, after, known)])
        for row in printed_rows(comparison_sections(result)[0].blocks):
            check_row(row)
            word = "corrected" if "corrected" in row["verdict"] else row["verdict"].partition(":")[0]
            seen[word] = seen.get(word, 0) + 1
        assert len(comparison_comment(result).splitlines()) <= 40
    assert {"slower", "faster", "no difference seen", "corrected", "cannot tell"} <= set(seen), seen


def test_figures_are_printed_with_the_digits_that_changes_are_made_of() -> None:
    from detscope.report.verbs.comparison import ends_text, figure_text

    assert figure_text(7.158) == "7.1580"
    assert figure_text(0.012346) == "0.012346"
    assert figure_text(123456.0) == "123,456"
    assert figure_text(123_460_000.0, "bytes") == "123.46 MB"
    assert figure_text(0.0) == "0"
    assert ends_text((-0.998, 53.0)) == "-99.8 % to over +1000.0 %"
    assert ends_text((11.566, 53.0)) == "+1156.6 % to +5300.0 %"
