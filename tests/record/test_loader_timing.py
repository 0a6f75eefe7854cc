"""Loader workers are measured inside the worker, and the user's loader stays the user's."""

from __future__ import annotations

import os
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from detscope.marks import region
from detscope.record.loader import forget_workers, instrumented_iterator, unwrap


class Marked(Dataset):
    def __init__(self, count: int = 6) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        with region("load"):
            time.sleep(0.002)
        with region("decode"):
            time.sleep(0.004)
        return torch.full((1,), float(index))


class Silent(Marked):
    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.full((1,), float(index))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_arrive_unchanged_with_the_times_of_their_making(workers):
    loader = DataLoader(Marked(), batch_size=2, num_workers=workers)
    plain = [batch.tolist() for batch in loader]
    pairs = [unwrap(item) for item in instrumented_iterator(loader)]
    assert [batch.tolist() for batch, _ in pairs] == plain
    for _, timing in pairs:
        assert timing.images == 2
        assert timing.region_ns("load") >= 2 * 2e6
        assert timing.region_ns("decode") > timing.region_ns("load") / 2
        assert timing.start_ns < timing.end_ns <= time.perf_counter_ns()
        assert (timing.pid == os.getpid()) == (workers == 0)
        assert (timing.worker == -1) == (workers == 0)


def test_a_data_set_without_marks_counts_as_loading():
    (first, *_) = [unwrap(item)[1] for item in instrumented_iterator(DataLoader(Silent()))]
    assert first.region_ns("load") >= 2e6


def test_the_loader_itself_is_left_as_it_was():
    data = Marked()
    loader = DataLoader(data, batch_size=2)
    collate = loader.collate_fn
    list(instrumented_iterator(loader))
    assert loader.dataset is data
    assert loader.collate_fn is collate
    assert isinstance(next(iter(loader)), torch.Tensor)


def test_persistent_workers_do_not_leak_timed_batches_into_later_passes():
    loader = DataLoader(Marked(), batch_size=2, num_workers=1, persistent_workers=True)
    list(instrumented_iterator(loader))
    forget_workers(loader)
    assert isinstance(next(iter(loader)), torch.Tensor)


def test_workers_started_by_spawn_are_measured_too():
    loader = DataLoader(Marked(2), batch_size=1, num_workers=1, multiprocessing_context="spawn")
    timings = [unwrap(item)[1] for item in instrumented_iterator(loader)]
    assert [timing.worker for timing in timings] == [0, 0]


def test_what_is_not_a_map_style_loader_passes_through():
    assert [unwrap(item) for item in instrumented_iterator([1, 2])] == [(1, None), (2, None)]
