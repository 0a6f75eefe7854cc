"""Loader workers are measured inside the worker, and the user's loader stays the user's."""

from __future__ import annotations

import os
import time
from itertools import pairwise

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from detscope.data.loading import collate_batch
from detscope.marks import region
from detscope.record.loader import BatchTiming, forget_workers, instrument_iterator, unwrap_batch
from detscope.record.steps.rows import make_loader_rows


def region_ns(timing: BatchTiming, name: str) -> int:
    return sum(end - start for region, start, end in timing.spans if region == name)


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


class Pictures(Marked):
    """Items of a detection data set."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return torch.full((3, 8, 8), 51 * index, dtype=torch.uint8), {"labels": torch.tensor([index])}


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_arrive_unchanged_with_the_times_of_their_making(workers):
    loader = DataLoader(Marked(), batch_size=2, num_workers=workers)
    plain = [batch.tolist() for batch in loader]
    pairs = [unwrap_batch(item) for item in instrument_iterator(loader)]
    assert [batch.tolist() for batch, _ in pairs] == plain
    for _, timing in pairs:
        assert timing.images == 2
        assert region_ns(timing, "load") >= 2 * 2e6
        assert region_ns(timing, "decode") >= 2 * 4e6
        assert [name for name, _, _ in timing.spans] == ["load", "decode"] * 2 + ["collate"]
        # one after the other and inside the batch, however long the machine took over each
        moments = [timing.start_ns, *(moment for _, *span in timing.spans for moment in span), timing.end_ns]
        assert all(before <= after for before, after in pairwise(moments))
        assert timing.start_ns < timing.end_ns <= time.perf_counter_ns()
        assert (timing.pid == os.getpid()) == (workers == 0)
        assert (timing.worker == -1) == (workers == 0)


def test_a_data_set_without_marks_counts_as_loading():
    (first, *_) = [unwrap_batch(item)[1] for item in instrument_iterator(DataLoader(Silent()))]
    assert region_ns(first, "load") >= 2e6


def test_the_loader_itself_is_left_as_it_was():
    data = Marked()
    loader = DataLoader(data, batch_size=2)
    collate_batch = loader.collate_fn
    list(instrument_iterator(loader))
    assert loader.dataset is data
    assert loader.collate_fn is collate_batch
    assert isinstance(next(iter(loader)), torch.Tensor)


def test_persistent_workers_do_not_leak_timed_batches_into_later_passes():
    loader = DataLoader(Marked(), batch_size=2, num_workers=1, persistent_workers=True)
    list(instrument_iterator(loader))
    forget_workers(loader)
    assert isinstance(next(iter(loader)), torch.Tensor)


def test_workers_started_by_spawn_are_measured_too():
    loader = DataLoader(
        Pictures(2), batch_size=1, num_workers=1, multiprocessing_context="spawn", collate_fn=collate_batch
    )
    pairs = [unwrap_batch(item) for item in instrument_iterator(loader)]
    assert [(timing.worker, timing.tensors) for _, timing in pairs] == [(0, 1), (0, 1)]
    (image,), (target,) = pairs[1][0]
    assert image.dtype == torch.float32 and image.unique().tolist() == pytest.approx([0.2])
    assert target["labels"].tolist() == [1]


def test_waiting_is_split_into_making_and_receiving():
    timing = BatchTiming(0, 1, start_ns=0, end_ns=100, arrived_ns=150)
    assert timing.receive_ns(30) == 30  # asked for at 120: it lay ready
    assert timing.receive_ns(120) == 50  # asked for at 30: 70 went into making it
    assert BatchTiming(-1, 1, 0, 100, arrived_ns=150).receive_ns(120) is None
    assert make_loader_rows(7, timing, 120)[0][-3:] == (120, 50, None)


def test_a_batch_that_lies_ready_is_only_received_and_tensors_are_counted_as_they_are_sent():
    def collate_apart(items):
        return {"numbers": list(items), "more": (torch.ones(1), "text")}

    loader = DataLoader(Marked(4), batch_size=2, num_workers=1, collate_fn=collate_apart)
    iterator = instrument_iterator(loader)
    next(iterator)
    limit_s = time.monotonic() + 900
    while iterator._worker_result_queue.empty() and time.monotonic() < limit_s:
        time.sleep(0.01)
    asked_ns = time.perf_counter_ns()
    _, timing = unwrap_batch(next(iterator))
    wait_ns = timing.arrived_ns - asked_ns
    assert timing.tensors == 3
    assert timing.end_ns < asked_ns < timing.arrived_ns
    assert timing.receive_ns(wait_ns) == wait_ns


def test_what_is_not_a_map_style_loader_passes_through():
    assert [unwrap_batch(item) for item in instrument_iterator([1, 2])] == [(1, None), (2, None)]
