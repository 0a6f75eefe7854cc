"""Parts of a training in several ranks, without starting any."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import PrefixStore, TCPStore

from detscope.config.schema import DataSettings, Settings, TrainingSettings
from detscope.data.loading import BatchOrder, build_loader
from detscope.data.registry import open_dataset
from detscope.errors import UsageError
from detscope.sessions.ranks import exchange as ranks
from detscope.sessions.ranks.exchange import RankExchange, RankPlace, rank_place
from detscope.sessions.ranks.launch import check_plan, lost_connection, root_cause
from detscope.sessions.ranks.team import one_rank_run

pytestmark = pytest.mark.processes


def batches(rank: int, number_of_ranks: int, **options) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return list(BatchOrder(20, 3, generator, rank=rank, ranks=number_of_ranks, drop_last=True, **options))


@pytest.mark.parametrize("options", [{}, {"shapes": [index % 2 for index in range(20)]}])
def test_ranks_share_the_batches_of_a_pass_none_twice_and_all_equally_many(options):
    alone = batches(0, 1, **options)
    shares = [batches(rank, 4, **options) for rank in range(4)]
    assert [len(share) for share in shares] == [1, 1, 1, 1]
    assert all(batch in alone for share in shares for batch in share)
    images = [image for share in shares for batch in share for image in batch]
    assert len(set(images)) == len(images) == 12


def test_batches_stay_alike_in_shape_when_ranks_share_them():
    shapes = [index % 2 for index in range(24)]
    for rank in range(2):
        order = BatchOrder(24, 3, torch.Generator().manual_seed(3), True, True, shapes, rank=rank, ranks=2)
        assert all(len({shapes[image] for image in batch}) == 1 for batch in order)
        assert len(list(order)) == len(order) == 4


def test_fewer_batches_than_ranks_are_an_error_and_not_an_endless_wait():
    dataset = open_dataset(DataSettings(images=2, image_width=64, image_height=64))
    with pytest.raises(UsageError, match="fewer batches of 2 than there are ranks"):
        build_loader(dataset, TrainingSettings(num_workers=0), "cpu", seed=0, share=(0, 2))


def test_a_place_is_read_from_torchruns_words_and_one_rank_has_none():
    words = {
        "TORCHELASTIC_RUN_ID": "x",
        "MASTER_PORT": "1",
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
    }
    assert rank_place({**words, "LOCAL_WORLD_SIZE": "2"}) == RankPlace(3, 4, 1, 2)
    assert rank_place({**words, "WORLD_SIZE": "1"}) is None
    assert rank_place({"RANK": "1", "WORLD_SIZE": "2"}) is None


@pytest.fixture
def pair() -> tuple[RankExchange, RankExchange]:
    server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=900))
    client = TCPStore("localhost", server.port, is_master=False, timeout=timedelta(seconds=900))
    first, second = (PrefixStore("t", store) for store in (server, client))
    return RankExchange(RankPlace(0, 2, 0, 2), first), RankExchange(RankPlace(1, 2, 1, 2), second)


def test_bytes_larger_than_a_piece_arrive_whole_and_none_in_time_is_none(pair, monkeypatch):
    monkeypatch.setattr(ranks, "CHUNK_BYTES", 1000)
    leader, other = pair
    content = bytes(index % 251 for index in range(4321))
    sender = threading.Thread(target=other.send_bytes, args=("big", content))
    sender.start()
    assert leader.receive_bytes("big", 300) == content
    sender.join()
    other.send_bytes("empty", b"")
    assert leader.receive_bytes("empty", 300) == b""
    assert leader.receive_bytes("never sent", 0.2) is None


def test_clocks_are_compared_with_an_error_that_holds(pair):
    leader, other = pair
    answering = threading.Thread(target=leader.read_clock, args=("end", 300))
    answering.start()
    reading = other.read_clock("end", 300)
    answering.join()
    assert reading is not None
    assert abs(reading.offset_ns) <= reading.error_ns  # one process, one clock: the truth is 0


def failure(exit_code: int, timestamp: int = 0) -> SimpleNamespace:
    return SimpleNamespace(exitcode=exit_code, timestamp=timestamp)


def told(message: str, kind: str = "RuntimeError") -> dict:
    return {"kind": kind, "message": message, "known": False, "traceback": ""}


def test_a_killed_rank_is_the_cause_even_where_another_one_was_seen_first():
    failures = SimpleNamespace(failures={0: failure(1, 5), 1: failure(-9, 6)})
    cause = root_cause(failures, {0: told("Connection closed by peer")})
    assert (cause.sentence, cause.by_signal) == ("rank 1 SIGKILL", True)


def test_a_rank_that_raised_is_the_cause_and_not_one_that_lost_its_connection_or_was_told_to_end():
    failures = SimpleNamespace(failures={0: failure(-15, 1), 1: failure(1, 2), 2: failure(1, 1)})
    words = {2: told("[peer] Connection closed by peer"), 1: told("no such image", "ValueError")}
    cause = root_cause(failures, words)
    assert (cause.sentence, cause.by_signal) == ("rank 1 ValueError: no such image", False)
    assert root_cause(SimpleNamespace(failures={1: failure(3)}), {}).sentence == "rank 1 exit code 3"
    assert lost_connection("gloo: Connection reset by peer")
    assert not lost_connection("no such image")


def test_a_rank_that_hangs_is_the_cause_and_not_those_who_waited_for_it():
    words = {0: told("Timed out waiting 5000ms for recv operation to complete")}
    cause = root_cause(SimpleNamespace(failures={0: failure(1)}), words, silent=[1])
    assert cause.sentence == "rank 1 hung: the others waited for it longer than training.rank_timeout_s"
    words[1] = told("no such image")
    assert root_cause(SimpleNamespace(failures={0: failure(1)}), words).rank == 1


def test_nodes_that_do_not_know_where_to_meet_and_options_of_one_process_are_refused():
    with pytest.raises(UsageError, match="need a place to meet"):
        check_plan(Settings(training=TrainingSettings(nodes=2)), ())
    with pytest.raises(UsageError, match="--try measure one process, not 2 ranks"):
        check_plan(Settings(training=TrainingSettings(ranks=2)), ["--try"])


def test_one_rank_alone_is_found_beside_only_with_the_same_settings(tmp_path):
    from detscope.runs.writer import RunWriter

    settings = Settings(training=TrainingSettings(batch_size=4)).model_dump()
    writer = RunWriter(tmp_path, "train", "alone", {"device": "cpu", "settings": settings})
    for step in range(6):
        whole = (step, 0, "recorded", "step", step, 100_000_000, None)
        writer.append_rows("steps", [whole])
        writer.append_rows("content", [(step, 4, *[None] * 7, 0, False, "")])
    writer.close_run("ok")
    asked = Settings(training=TrainingSettings(batch_size=4, ranks=2, steps=50)).model_dump()
    assert one_rank_run(tmp_path, asked, "cpu") == {
        "run": writer.folder.name,
        "images_per_s": pytest.approx(40),
    }
    assert one_rank_run(tmp_path, asked, "cuda:0") is None
    other = Settings(training=TrainingSettings(batch_size=2, ranks=2)).model_dump()
    assert one_rank_run(tmp_path, other, "cpu") is None
