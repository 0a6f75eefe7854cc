"""A part of a script recorded, and a script that is asked to stop: it ends as if by itself."""

from __future__ import annotations

from typing import Any

import polars as pl
import torch
from script_listening import Net, batches, train


def test_a_window_records_the_steps_that_were_asked_for(listen: Any) -> None:
    model = Net()
    with listen(window="6:12") as heard:
        train(model, batches(20), torch.optim.SGD(model.parameters(), lr=0.1))
    assert heard.steps == 20
    numbers = heard.table("steps").filter(pl.col("phase") == "step")["step"].to_list()
    assert numbers == list(range(6, 12))
    assert "warmup" not in heard.table("steps")["mode"].to_list()


def test_enough_steps_end_an_endless_loop(listen: Any) -> None:
    model = Net()
    ended = []
    with listen(max_steps=5) as heard:
        try:
            while True:
                train(model, batches(3), torch.optim.SGD(model.parameters(), lr=0.1))
        finally:
            ended.append("finally")
    assert ended == ["finally"]
    modes = heard.table("steps").filter(pl.col("phase") == "step")["mode"].to_list()
    assert modes.count("recorded") == 5
    assert heard.info["status"] == "ok"


def test_a_last_evaluation_in_a_finally_block_may_come_to_its_end(listen: Any) -> None:
    model = Net()
    evaluated = 0
    with listen(max_steps=3):
        try:
            while True:
                train(model, batches(3), torch.optim.SGD(model.parameters(), lr=0.1))
        finally:
            with torch.no_grad():
                for batch in batches(4):
                    model(batch)
                    evaluated += 1
    assert evaluated == 4


def test_a_script_that_catches_the_request_to_stop_is_asked_again_and_then_let_go(listen: Any) -> None:
    model = Net()
    caught = 0
    with listen(max_steps=1) as heard:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(150):
            try:
                train(model, batches(1), optimizer)
            except SystemExit:
                caught += 1
    assert caught == 100
    assert any("caught every request" in note for note in heard.info["notes"])
