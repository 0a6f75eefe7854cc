"""Planted scripts on waits, launches and costs, run as a person runs them, and their mended twins."""

from __future__ import annotations

import pytest

from planted_defects.planted_runs import check_planted
from planted_defects.table_a import PLANTED


@pytest.mark.parametrize(("script", "rule", "text"), PLANTED, ids=[row[0] for row in PLANTED])
def test_the_planted_line_is_named_and_the_mended_script_is_left_alone(script, rule, text, tmp_path):
    check_planted(script, rule, text, tmp_path)
