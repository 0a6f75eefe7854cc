"""One rank among several: where it stands, how the ranks find each other, and what they exchange as bytes.

The exchange goes through the store that torchrun keeps for its ranks, not through the process group: a
script may have left its group by the time its recording ends, and NCCL cannot carry bytes of the host.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from detscope.errors import MachineError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

CHUNK_BYTES = 4 << 20
CLOCK_ROUNDS = 24
CONNECT_S = 60.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class RankPlace:
    """Which of how many processes this one is."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int

    @property
    def leads_ranks(self) -> bool:
        """Rank 0 writes what is common."""
        return self.rank == 0


@dataclass(frozen=True)
class ClockReading:
    """How far rank 0's clock is ahead of this rank's at a moment of this rank's clock."""

    time_ns: int
    offset_ns: int
    error_ns: int  # half of the quickest exchange


def rank_place(environment: Mapping[str, str] = os.environ) -> RankPlace | None:
    """The place torchrun gave this process; None where nobody started several, or only one of them."""
    if "TORCHELASTIC_RUN_ID" not in environment or "MASTER_PORT" not in environment:
        return None
    place = RankPlace(
        int(environment["RANK"]),
        int(environment["WORLD_SIZE"]),
        int(environment.get("LOCAL_RANK", 0)),
        int(environment.get("LOCAL_WORLD_SIZE", 1)),
    )
    return place if place.ranks > 1 else None


def choose_device(asked: str, local_rank: int, local_ranks: int) -> str:
    """The device of a rank: one of the kind asked for each, or the processors that all of them share."""
    from detscope.machine.devices import count_devices, resolve_device

    kind = resolve_device(asked.partition(":")[0]).partition(":")[0]
    if kind == "cpu":
        return kind
    there, _ = count_devices(kind)
    if there < local_ranks:
        raise MachineError(
            f"{local_ranks} ranks need a {kind.upper()} device each, this host has {there}",
            f"use --ranks {there}, or --device cpu",
        )
    return f"{kind}:{local_rank}"


def boot_identity() -> str | None:
    """Equal for processes that read the same monotonic clock; None where the system does not tell."""
    return _BOOT.read_text().strip() if _BOOT.is_file() else None


class RankExchange:
    """Bytes and clocks between ranks, by way of a store: torchrun's, or one of rank 0."""

    def __init__(self, place: RankPlace, store: Store) -> None:
        self.place = place
        self.members = tuple(range(1, place.ranks))  # besides rank 0
        self._store = store

    @classmethod
    def connect_store(cls, place: RankPlace) -> RankExchange:
        """Reach the store; every rank of a job does so once."""
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=CONNECT_S))
        return cls(place, PrefixStore("detscope", store))

    def has_name(self, name: str) -> bool:
        """Whether somebody has left this name."""
        return bool(self._store.check([name]))

    def send_bytes(self, name: str, content: bytes) -> None:
        """Leave bytes for whoever asks for this name, in pieces that the store's memory bears."""
        pieces = range(0, len(content), CHUNK_BYTES)
        for number, start in enumerate(pieces):
            # memory of the store is freed piece by piece: the next one waits until the last was taken
            if number:
                self._store.wait([f"{name}/taken/{number - 1}"], timedelta(seconds=CONNECT_S))
            self._store.set(f"{name}/{number}", content[start : start + CHUNK_BYTES])  # type: ignore[arg-type]
            if number == 0:
                self._store.set(f"{name}/pieces", str(len(pieces)))
        if not pieces:
            self._store.set(f"{name}/pieces", "0")

    def receive_bytes(self, name: str, timeout_s: float) -> bytes | None:
        """Bytes of this name; None if nobody sent them in time."""
        from torch.distributed import DistStoreError

        try:
            self._store.wait([f"{name}/pieces"], timedelta(seconds=timeout_s))
            found = []
            for number in range(int(self._store.get(f"{name}/pieces"))):
                self._store.wait([f"{name}/{number}"], timedelta(seconds=CONNECT_S))
                found.append(bytes(self._store.get(f"{name}/{number}")))
                self._store.delete_key(f"{name}/{number}")
                self._store.set(f"{name}/taken/{number}", "")
        except DistStoreError:
            return None
        return b"".join(found)

    def send_json(self, name: str, value: Any) -> None:
        """Leave plain data."""
        self.send_bytes(name, json.dumps(value).encode())

    def receive_json(self, name: str, timeout_s: float) -> Any:
        """Plain data of this name; None if nobody sent it in time."""
        found = self.receive_bytes(name, timeout_s)
        return None if found is None else json.loads(found)

    def read_clock(self, label: str, timeout_s: float = CONNECT_S) -> ClockReading | None:
        """Compare clocks with rank 0; every rank calls this, and rank 0 answers the others in turn."""
        if self.place.leads_ranks:
            for rank in self.members:
                for number in range(CLOCK_ROUNDS):
                    self._store.wait([f"{label}/{rank}/ask/{number}"], timedelta(seconds=timeout_s))
                    self._store.set(f"{label}/{rank}/tell/{number}", str(perf_counter_ns()))
            return None
        best: ClockReading | None = None
        name = f"{label}/{self.place.rank}"
        for number in range(CLOCK_ROUNDS):
            asked_ns = perf_counter_ns()
            self._store.set(f"{name}/ask/{number}", "")
            self._store.wait([f"{name}/tell/{number}"], timedelta(seconds=timeout_s))
            there_ns = int(self._store.get(f"{name}/tell/{number}"))
            told_ns = perf_counter_ns()
            middle_ns, error_ns = (asked_ns + told_ns) // 2, (told_ns - asked_ns + 1) // 2
            if best is None or error_ns < best.error_ns:
                best = ClockReading(middle_ns, there_ns - middle_ns, error_ns)
        return best

    def announce_label(self, label: str) -> None:
        """Let those go on who wait for this."""
        self._store.set(f"done/{label}", "")

    def wait_for(self, label: str, timeout_s: float) -> None:
        """Wait until it was announced; torchrun ends those who wait if the announcer fails."""
        self._store.wait([f"done/{label}"], timedelta(seconds=timeout_s))

    def wait_for_leader(self, label: str, timeout_s: float) -> None:
        """Nobody passes before rank 0 has."""
        if self.place.leads_ranks:
            self.announce_label(label)
        else:
            self.wait_for(label, timeout_s)
