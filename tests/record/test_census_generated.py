"""Tensors that the host makes of no data and moves to the device: each is a wait that nobody needs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from census_runs import record_census
from detscope.analyze.summary import summarize
from detscope.record.census.places import tensors_in_batch


def move_positions(output):
    positions = torch.arange(4).float() / 4
    return output + positions.sin().to(output.device)


def make_in_place(output):
    return output + (torch.arange(4, device=output.device) / 4).sin()


def index_by_range(output):
    return output[torch.arange(len(output)), output.argmax(-1)]


def move_to_host_again(output):
    rows = output.detach().argmax(-1).cpu()
    kept = torch.tensor([0, 1], device=rows.device)
    return output + rows[kept].sum().to(rows.device, torch.float32)


def move_measured(output):
    sizes = torch.tensor([len(output), 1, 2, 3])
    return output + sizes.float().to(output.device)


def move_written(output):
    sizes = torch.zeros(4)
    sizes[0] = output.detach()[0, 0]
    return output + sizes.to(output.device)


def move_later(output):
    return output + torch.arange(4).to(output.device, non_blocking=True)


def move_as_told(output, later=False):
    moved = torch.arange(4).to(
        output.device,
        non_blocking=later,
    )
    return output + moved


def move_embedding(output):
    embedding = torch.arange(120.0 * 128).reshape(1, 120, 128) / 128
    return output + embedding.sin().to(output.device).mean()


def find_copies(add, folder, rule="pageable_feed"):
    model = nn.Linear(4, 4)
    batches = [torch.rand(3, 4) for _ in range(4)]
    record_census(model, batches, lambda batch: add(model(batch)).sum(), folder)
    found = summarize(next(folder.glob("*/run.json")).parent).findings
    return [one for one in found if one.rule == rule]


def test_one_copy_of_what_sizes_decide_is_told(tmp_path):
    (found,) = find_copies(move_positions, tmp_path)
    assert found.where[0].function == "move_positions"
    assert "1 copy to the device" in found.claim and "1 of what the host computes" in found.claim
    assert found.change.startswith("make it where it is used")
    assert found.on_device is not None and found.on_device.waits == 1


def test_one_index_that_sizes_decide_is_told(tmp_path):
    (found,) = find_copies(index_by_range, tmp_path)
    assert found.where[0].function == "index_by_range"
    assert "1 of what the host computes" in found.claim


@pytest.mark.parametrize(
    "add", [make_in_place, move_to_host_again, move_measured, move_written, move_later, move_as_told]
)
def test_data_that_has_to_come_over_is_left_alone(add, tmp_path):
    assert not find_copies(add, tmp_path)


def test_an_embedding_of_positions_is_no_image(tmp_path):
    assert not find_copies(move_embedding, tmp_path, "float_batches")
    assert find_copies(move_embedding, tmp_path / "again")


def test_a_batch_that_answers_to_every_name_is_not_asked_and_its_tensors_are_found() -> None:
    class Batch:
        def __init__(self) -> None:
            self.tensors, self.masks = torch.ones(2), [torch.zeros(1)]

        def to(self, device: str) -> Batch:
            return self

        def __getattr__(self, name: str) -> object:
            raise AssertionError(name)

    class Silent:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(name)

    batch = Batch()
    assert list(tensors_in_batch(({"a": batch}, Silent()))) == [batch.tensors, *batch.masks]
