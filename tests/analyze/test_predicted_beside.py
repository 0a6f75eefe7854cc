"""Predicted beside measured: errors, intervals, and a file that cannot be trusted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detscope.analyze.prediction import FILE_NAME, compare_categories, compare_figure, read_predicted
from detscope.errors import InputError
from detscope.runs.reader import Run


def test_an_error_is_relative_to_what_was_measured_and_the_interval_is_asked_whether_it_held() -> None:
    row = compare_figure("step", "ms", 110.0, 100.0, interval=(90.0, 120.0))
    assert row.error == pytest.approx(0.1)
    assert row.inside is True
    assert compare_figure("step", "ms", 110.0, 130.0, interval=(90.0, 120.0)).inside is False


def test_what_was_not_measured_has_neither_error_nor_verdict() -> None:
    row = compare_figure("peak", "bytes", 110.0, None, interval=(90.0, 120.0), why="not recorded")
    assert row.error is None and row.inside is None and row.why == "not recorded"


def test_categories_come_largest_first_and_one_sided_ones_are_zero_on_the_other_side() -> None:
    rows = compare_categories({"activations": 10.0, "workspace": 3.0}, {"activations": 12.0, "unknown": 1.0})
    assert [row.name for row in rows] == ["activations", "workspace", "unknown"]
    assert rows[1].measured == 0.0 and rows[1].error is None


MISSHAPEN = '{"version": 1, "compared": [], "rows": [], "device_model": {"methods": {"latency": 1}}}'


@pytest.mark.parametrize(
    "content", ["no json", "[]", '{"version": 1}', '{"version": 1, "compared": [1]}', MISSHAPEN]
)
def test_a_damaged_file_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(InputError, match="is damaged"):
        read_predicted(Run(tmp_path, {}))


def test_a_newer_file_is_refused_and_no_file_is_nothing(tmp_path: Path) -> None:
    assert read_predicted(Run(tmp_path, {})) is None
    (tmp_path / FILE_NAME).write_text(json.dumps({"version": 9, "compared": []}))
    with pytest.raises(InputError, match="of version 9"):
        read_predicted(Run(tmp_path, {}))
