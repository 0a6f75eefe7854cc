"""A part of a script recorded, and a script that is asked to stop: it ends as if by itself."""

from __future__ import annotations

import signal
from typing import Any

import polars as pl
import pytest
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


class TookTooLongError(Exception):
    pass


@pytest.mark.parametrize("place", ["end_step", "prepare_root", "watch_inputs"])
def test_what_a_signal_handler_raises_while_a_step_is_written_reaches_the_script(
    listen: Any, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def ring(_number: int, _frame: Any) -> None:
        raise TookTooLongError

    model, earlier = Net(), signal.signal(signal.SIGUSR1, ring)
    heard = listen()
    plain = getattr(heard.tracker.recording, place)

    def ring_inside(*args: Any) -> Any:
        if heard.tracker.recording.training.steps == 5:
            signal.raise_signal(signal.SIGUSR1)
        return plain(*args)

    monkeypatch.setattr(heard.tracker.recording, place, ring_inside)
    try:
        with pytest.raises(TookTooLongError), heard:
            train(model, batches(12), torch.optim.SGD(model.parameters(), lr=0.1))
    finally:
        signal.signal(signal.SIGUSR1, earlier)
    assert heard.steps == 5
    assert "a signal handler of the script's raised TookTooLongError" in heard.info["reason"]
