"""Ranks that no torchrun started: how their recordings find each other, whoever launched the processes.

That this process is one of several is told by torch's process group. Rank 0 opens a store of its own and
leaves its address under a key of the group's store; the others look for it between steps. Nobody waits while
the script runs, no collective is called, and the group's store may be gone when the recordings end.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from detscope.sessions.ranks.exchange import CONNECT_S, RankExchange, RankPlace, boot_identity

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

DELIVERY_S = 120.0  # for ranks that are still at work when rank 0 has ended
REACH_S = 5.0  # for a connection to another host
LATE_S = 2.0  # for recordings that have not been seen when rank 0 ends
_LOOK_EVERY_S = 0.05
_meetings = 0  # of this process: each has a key of its own


class Meeting:
    """One recording among those of a process group."""

    def __init__(self) -> None:
        global _meetings
        _meetings += 1
        self._key = f"detscope/meeting/{_meetings}"
        self._place: RankPlace | None = None
        self._group_store: Store | None = None
        self._own_store: Store | None = None
        self._leader: dict[str, Any] = {}
        self._exchange: RankExchange | None = None

    def see_group(self, rank: int, ranks: int, store: Store) -> None:
        """This process is one of several."""
        self._place = RankPlace(rank, ranks, rank, ranks)
        if self._place.leads_ranks:
            with contextlib.suppress(RuntimeError, OSError):
                self._open_store(store)
        else:  # kept no longer than needed: a group's file goes when nobody holds its store
            self._group_store = store
            self.look_for_leader()

    def _open_store(self, store: Store) -> None:
        from torch._C._distributed_c10d import TCPStore

        assert self._place is not None
        reach = timedelta(seconds=CONNECT_S)
        own = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=reach)
        self._own_store = own
        self._exchange = RankExchange(self._place, own)
        about = {"port": own.port, "host": socket.gethostname(), **_describe_process()}
        store.set(self._key, json.dumps(about))

    def look_for_leader(self) -> None:
        """Between two steps: whether rank 0 has left its address by now."""
        store, place = self._group_store, self._place
        if place is None or place.leads_ranks or store is None or self._exchange is not None:
            return
        try:
            if not store.check([self._key]):
                return
            self._leader = json.loads(store.get(self._key))
        except (RuntimeError, ValueError):  # the group is gone, and its store with it
            self._group_store = None
            return
        self._group_store = None
        with contextlib.suppress(RuntimeError, OSError):
            self._join_leader(place, self._leader)

    def _join_leader(self, place: RankPlace, leader: dict[str, Any]) -> None:
        from torch._C._distributed_c10d import TCPStore

        near = leader.get("boot") is not None and leader.get("boot") == boot_identity()
        hosts = ("localhost", leader["host"]) if near else (leader["host"],)
        for host in hosts:
            with contextlib.suppress(OSError):
                with closing(socket.create_connection((host, leader["port"]), REACH_S)):
                    pass
                store = TCPStore(host, leader["port"], is_master=False, timeout=timedelta(seconds=REACH_S))
                self._exchange = RankExchange(place, store)
                self._exchange.send_json(f"here/{place.rank}", _describe_process())
                return

    def finish_run(self, run: Path, script: str, *, failed: bool) -> Path | None:
        """The run is closed: rank 0 merges and gets the folder back, others deliver and get None.

        A rank that failed, or whose fellows are not recorded, keeps its own run, which says so.
        """
        from detscope.sessions.ranks.merge import finish_rank

        place = self._place
        if place is None:
            return run
        self.look_for_leader()
        with contextlib.suppress(RuntimeError):  # the store of rank 0 is gone
            if self._exchange is not None and self._gather_ranks(self._exchange, place, failed):
                return finish_rank(run, exchange=self._exchange)
        return run if failed else _note_alone(run, place, script)

    def _gather_ranks(self, exchange: RankExchange, place: RankPlace, failed: bool) -> bool:
        """Whether there are others to make one run with."""
        exchange.announce_label(f"left/{place.rank}" if failed else f"ready/{place.rank}")
        if failed:
            return False
        if not place.leads_ranks:
            return _waits_for(exchange, 0, self._leader, None)
        exchange.members = tuple(
            rank
            for rank in self._find_others(exchange)
            if _waits_for(exchange, rank, exchange.receive_json(f"here/{rank}", REACH_S) or {}, DELIVERY_S)
        )
        return bool(exchange.members)

    def _find_others(self, exchange: RankExchange) -> list[int]:
        wanted = range(1, exchange.place.ranks)
        ends = monotonic() + LATE_S
        while True:
            found = [rank for rank in wanted if exchange.has_name(f"here/{rank}/pieces")]
            if len(found) == len(wanted) or monotonic() > ends:
                return found
            sleep(_LOOK_EVERY_S)


def _waits_for(exchange: RankExchange, rank: int, process: dict[str, Any], longest_s: float | None) -> bool:
    """Whether a rank comes to the end of its recording; one that has left or died does not."""
    ends = None if longest_s is None else monotonic() + longest_s
    while not exchange.has_name(f"done/ready/{rank}"):
        if exchange.has_name(f"done/left/{rank}") or _is_gone(process):
            return exchange.has_name(f"done/ready/{rank}")
        if ends is not None and monotonic() > ends:
            return False
        sleep(_LOOK_EVERY_S)
    return True


def _describe_process() -> dict[str, Any]:
    space = None  # where process numbers mean the same; containers of one host may differ
    with contextlib.suppress(OSError):
        space = str(Path("/proc/self/ns/pid").readlink())
    return {"pid": os.getpid(), "boot": boot_identity(), "processes": space}


def _is_gone(process: dict[str, Any]) -> bool:
    """Whether it has certainly ended; of another host nobody knows."""
    here = _describe_process()
    if here["boot"] is None or any(process.get(key) != here[key] for key in ("boot", "processes")):
        return False
    import psutil

    try:
        return bool(psutil.Process(process["pid"]).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def _note_alone(run: Path, place: RankPlace, script: str) -> Path:
    from detscope.runs.reader import load_run
    from detscope.runs.writer import update_info

    words = (
        f"1 of {place.ranks} ranks recorded, rank {place.rank}: cannot tell who waits for whom; record all of"
        f" them: let what starts the ranks start `detscope run {script}` in each"
    )
    update_info(run, {"notes": [*(load_run(run).info.get("notes") or []), words]})
    return run
