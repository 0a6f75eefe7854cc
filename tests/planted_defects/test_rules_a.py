"""Planted scripts on waits, launches and costs, run as a person runs them, and their mended twins."""

from __future__ import annotations

import pytest

from planted_defects.planted_runs import check_diff, check_planted, check_waits, name_mended
from planted_defects.table_a import PLANTED

WITH_DIFF = ("tensor_check", "item_per_key", "host_reads", "cdist_few_columns")
SCRIPTS = [one for row in PLANTED for one in (row[0], name_mended(row[0]))]


@pytest.mark.parametrize(("script", "rule", "text"), PLANTED, ids=[row[0] for row in PLANTED])
def test_the_planted_line_is_named_and_the_mended_script_is_left_alone(script, rule, text, record):
    check_planted(script, rule, text, record)


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_is_counted_without_a_device_is_waited_for_on_one_at_the_same_lines(script, record):
    check_waits(script, record)


@pytest.mark.parametrize("rule", WITH_DIFF)
def test_the_change_that_is_written_down_leaves_nothing_to_find_and_the_same_losses(rule, record, tmp_path):
    check_diff(f"{rule}.py", rule, record, tmp_path)
