"""A matrix of all pairs of which the diagonal alone is looked at."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from census_runs import record_census
from detscope.analyze.summary import summarize

RULE = "cost_over_all_images"


def overlap_all(one, other):
    return torch.min(one[:, None], other[None]).sum(-1)


def take_diagonal(one, other):
    return torch.diag(overlap_all(one, other))


def view_diagonal(one, other):
    return overlap_all(one, other).diagonal()


def compare_rows(one, other):
    return torch.min(one, other).sum(-1)


def read_whole_before(one, other):
    overlaps = overlap_all(one, other)
    return overlaps.sum(-1) / overlaps.diag()


def take_other_diagonal(one, other):
    return torch.diag(overlap_all(one, other), 1)


def find_places(compare, folder):
    model = nn.Linear(4, 4)
    batches = [(torch.rand(6, 4), torch.rand(6, 4)) for _ in range(4)]
    record_census(model, batches, lambda batch: compare(model(batch[0]), batch[1]).sum(), folder)
    return [one for one in summarize(next(folder.glob("*/run.json")).parent).findings if one.rule == RULE]


@pytest.mark.parametrize("compare", [take_diagonal, view_diagonal])
def test_a_diagonal_of_all_pairs_is_found_where_it_is_taken_and_made(compare, tmp_path):
    (found,) = find_places(compare, tmp_path)
    assert [place.function for place in found.where] == [compare.__name__, "overlap_all"]
    assert "83% of the pairs" in found.claim and "of 6 rows" in found.claim
    assert found.on_device is not None and found.on_device.bytes == 6 * 5 * 4


@pytest.mark.parametrize("compare", [compare_rows, read_whole_before, take_other_diagonal])
def test_rows_compared_one_to_one_and_matrices_that_are_used_are_none(compare, tmp_path):
    assert not find_places(compare, tmp_path)
