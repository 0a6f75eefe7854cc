"""What a read of the device is told to be replaced by, from how its line looks."""

from __future__ import annotations

import pytest

from counted_runs import place, write_counted
from detscope.analyze.summary import summarize

BRANCH, VALUE, LARGEST = "do without the branch", "keep it a tensor", "Python's max() and min()"
TOGETHER = "read all elements at once"


@pytest.mark.parametrize(
    ("code", "begin"),
    [
        ("if mask.sum():", BRANCH),
        ("scale = 1 if mask.any() else 2", BRANCH),
        ("steps = int(count.item()) if isinstance(count, Tensor) else int(count)", VALUE),
        ("steps = count.item() if count is not None else 0", VALUE),
        ("boxes = max(mask.sum(), 1)", LARGEST),
        ("count = int(counts[image])", TOGETHER),
        ("row, column = pair[0].item(), pair[1].item()", TOGETHER),
        ("total = float(loss.sum())", VALUE),
    ],
)
def test_a_read_is_told_what_does_the_same_without(code, begin, tmp_path):
    run = write_counted(tmp_path, [place(code=code, around="")])
    (found,) = [one for one in summarize(run).findings if one.rule == "host_reads"]
    assert found.change.startswith(begin)


def test_what_is_copied_into_a_tensor_of_the_host_is_told_to_be_made_on_the_device(tmp_path):
    row = list(place(code="padded[index] = boxes", around="", kind="copy"))
    row[2] = "aten::copy_"
    (found,) = [one for one in summarize(write_counted(tmp_path, [tuple(row)])).findings if one.where]
    assert found.change.startswith("what is written into lies on the host")


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("boxes = float(num_boxes)", "host_reads"),
        ("return value.item()", "item_per_key"),
        ("total += value.item()", "item_per_key"),
    ],
)
def test_one_value_per_call_is_no_list_of_values_unless_the_function_is_for_one_of_them(code, rule, tmp_path):
    row = list(place(code=code, around="", count=5))
    row[10] = 5 if "+=" in code else 1  # in one call
    launched = place(line=8, kind="launch", code="loss = loss / boxes", around="")
    rows = [tuple(row), launched]
    (found,) = [one for one in summarize(write_counted(tmp_path, rows)).findings if one.where]
    assert found.rule == rule


def test_values_read_call_by_call_where_nothing_is_launched_between_are_a_list_of_values(tmp_path):
    row = list(place(code="boxes = float(num_boxes)", around="", count=5))
    row[10] = 1  # in one call
    (found,) = [one for one in summarize(write_counted(tmp_path, [tuple(row)])).findings if one.where]
    assert found.rule == "item_per_key"
