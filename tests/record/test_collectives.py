"""Collectives that a program calls itself, between two real ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch

from detscope.analyze.ranks.collectives import find_last_arrivals, read_collectives, sum_waits
from detscope.runs.writer import polars_schema

RANKS = Path(__file__).with_name("calling_ranks.py")
KINDS = {
    "all_reduce": ["all_reduce"],
    "all_reduce bound before": ["all_reduce"],
    "all_reduce, waited for": ["all_reduce"],
    "barrier": ["barrier"],
    "monitored_barrier": ["barrier"],
    "all_gather": ["all_gather"],
    "all_gather_into_tensor": ["all_gather"],
    "all_gather_object": ["all_gather", "all_gather"],
    "broadcast": ["broadcast"],
    "broadcast_object_list": ["broadcast", "broadcast"],
    "reduce": ["reduce"],
    "reduce_scatter": ["reduce_scatter"],
    "all_to_all_single": ["all_to_all"],
    "gather": ["gather"],
    "scatter": ["scatter"],
    "functional": ["all_reduce"],
}
# in these nobody is done before all have come
MEET = ("all_reduce", "all_reduce bound before", "barrier", "monitored_barrier", "all_gather", "functional")


@pytest.fixture(scope="module")
def noted(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("calls")
    command = [sys.executable, str(RANKS), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("name", KINDS)
def test_a_collective_is_noted_whatever_its_name_and_however_it_is_called(noted, name):
    for rank in noted:
        if name in rank["failed"]:
            pytest.skip(f"not in the backend of torch {torch.__version__}: {rank['failed'][name]}")
        assert [row[2] for row in rank["rows"][name]] == KINDS[name]
        assert all(row[7] == "other" for row in rank["rows"][name])


def test_two_ranks_that_talk_to_each_other_come_to_the_same_meeting(noted):
    sent, received = noted[1]["rows"]["send or recv"], noted[0]["rows"]["send or recv"]
    assert (sent[0][2], received[0][2]) == ("send", "recv")
    assert sent[0][8].endswith(":1>0")
    assert (sent[0][8], sent[0][3]) == (received[0][8], received[0][3])
    ends = [{(row[8], row[3]) for row in rank["rows"]["batch_isend_irecv"]} for rank in noted]
    assert ends[0] == ends[1]
    assert len(ends[0]) == 2


def test_a_rank_waits_from_its_own_coming_until_the_last_has_come(noted):
    rows = [tuple(row) for rank in noted for own in rank["rows"].values() for row in own]
    frame = pl.DataFrame(rows, schema=polars_schema("communication"), orient="row")
    names = list(noted[0]["rows"])
    steps = [names.index(name) for name in MEET]
    talks = read_collectives(frame, steps)
    latest = find_last_arrivals(talks)
    for step in steps:
        first, second = talks[0, step].blocked[0], talks[1, step].blocked[0]
        assert first.meeting == second.meeting
        last_ns = max(first.arrived_ns, second.arrived_ns)
        for rank in (0, 1):
            own = talks[rank, step].blocked[0]
            assert own.end_ns >= last_ns
            assert sum_waits(talks[rank, step], latest) == max(0, last_ns - own.start_ns)
            assert talks[rank, step].exposed_ns == own.end_ns - own.start_ns


def test_when_nobody_listens_any_more_nothing_is_noted(noted):
    assert [rank["rows"]["after"] for rank in noted] == [[], []]
