"""What the ranks recorded becomes one run: rank 0's, with the others' tables beside its own."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from detscope.runs.folder import point_latest_at
from detscope.runs.reader import Run, load_run
from detscope.runs.writer import polars_schema, write_info, write_table
from detscope.sessions.ranks.exchange import (
    ClockReading,
    RankExchange,
    RankPlace,
    boot_identity,
    rank_place,
)

# table of a rank -> table of the run, where rows say of which rank they are
TABLES = {
    "steps": "rank_steps",
    "content": "rank_content",
    "timeline": "rank_timeline",
    "communication": "communication",
}
DELIVERY_S = 120.0
_FACTS = ("rank", "host", "pid", "device", "clocks", "last_loss", "status", "reason")


@dataclass(frozen=True)
class RankTables:
    """What one rank recorded, as far as a view of all ranks needs it."""

    rank: int
    facts: dict[str, Any]
    frames: dict[str, pl.DataFrame]


def finish_rank(
    run: Path,
    *,
    readings: Sequence[ClockReading] = (),
    facts: Mapping[str, Any] | None = None,
    exchange: RankExchange | None = None,
    timeout_s: float = DELIVERY_S,
) -> Path | None:
    """Call at the end of a rank's recording, its run closed, in every process that torchrun started.

    Rank 0 merges and gets the run's folder back, the others deliver and get None. A process that is
    alone gets its folder back at once. `readings` are clock readings made earlier.
    """
    place = exchange.place if exchange is not None else rank_place()
    if place is None:
        return run
    exchange = exchange or RankExchange.connect_store(place)
    if place.leads_ranks:
        _collect_tables(run, exchange, facts or {}, timeout_s)
        return run
    last = exchange.read_clock("end", timeout_s)
    clocks = [asdict(reading) for reading in (*readings, last) if reading is not None]
    own = take_tables(load_run(run), place.rank, {**describe_rank(place), **(facts or {}), "clocks": clocks})
    exchange.send_bytes(f"tables/{place.rank}", pack_tables(own))
    exchange.receive_bytes(f"merged/{place.rank}", timeout_s)  # rank 0 may want the folder
    return None


def _collect_tables(run: Path, exchange: RankExchange, facts: Mapping[str, Any], timeout_s: float) -> None:
    """Rank 0's part: answer clocks, take the tables, write, let the others go."""
    from torch.distributed import DistStoreError

    place = exchange.place
    with contextlib.suppress(DistStoreError):  # who does not ask the time delivers nothing either: said below
        exchange.read_clock("end", timeout_s)
    members = [take_tables(load_run(run), 0, {**describe_rank(place), **facts})]
    for rank in exchange.members:
        found = exchange.receive_bytes(f"tables/{rank}", timeout_s)
        if found is not None:
            members.append(unpack_tables(found))
    merge_ranks(run, members, place.ranks)
    for member in members[1:]:
        exchange.send_bytes(f"merged/{member.rank}", b"")
    point_latest_at(run)


def describe_rank(place: RankPlace) -> dict[str, Any]:
    """Who and where a rank is."""
    return {"rank": place.rank, "host": socket.gethostname(), "pid": os.getpid(), "boot": boot_identity()}


def take_tables(run: Run, rank: int, facts: Mapping[str, Any]) -> RankTables:
    """Take a rank's tables from its own run; facts that its run.json tells are kept."""
    told = run.info.get("rank_facts") or {}
    known = {"device": run.info.get("device"), **told, **facts, "folder": str(run.folder.absolute())}
    known |= {"rank": rank, "status": run.status, "reason": run.info.get("reason")}
    return RankTables(rank, known, {name: run.table(name) for name in TABLES})


def pack_tables(tables: RankTables) -> bytes:
    """Tables as bytes, for ranks of the same job."""
    frames = {
        name: frame.write_ipc_stream(None, compression="lz4").getvalue()
        for name, frame in tables.frames.items()
    }
    content = {"rank": tables.rank, "facts": tables.facts, "frames": frames}
    return msgspec.msgpack.encode(content, enc_hook=str)


def unpack_tables(content: bytes) -> RankTables:
    """The reverse of `pack_tables`."""
    told = msgspec.msgpack.decode(content)
    frames = {name: pl.read_ipc_stream(io.BytesIO(body)) for name, body in told["frames"].items()}
    return RankTables(told["rank"], told["facts"], frames)


def merge_ranks(run: Path, members: Sequence[RankTables], ranks: int) -> None:
    """Write the tables of all ranks into rank 0's run, on rank 0's clock, and say what is missing."""
    for source, target in TABLES.items():
        skip = target == "rank_timeline"  # rank 0's own time line stays where every view looks for it
        pieces = [
            _add_rank(_on_common_clock(member, members[0], member.frames[source]), member.rank, target)
            for member in members
            if not (skip and member.rank == 0) and member.frames[source].height
        ]
        if pieces:
            write_table(run / f"{target}.parquet", pl.concat(pieces))
    info = load_run(run).info
    info["ranks"] = {
        "count": ranks,
        "members": [
            {**_describe_member(member, members[0]), "run": _bring_home(run, member)} for member in members
        ],
        "missing": sorted(set(range(ranks)) - {member.rank for member in members}),
    }
    _judge_run(info, members)
    write_info(run, info)


def _judge_run(info: dict[str, Any], members: Sequence[RankTables]) -> None:
    """A run is whole when every rank's part is."""
    missing = info["ranks"]["missing"]
    broken = [member for member in members if member.facts["status"] != "ok"]
    if info.get("status") != "ok" or not (missing or broken):
        return
    words = [f"rank {rank} delivered nothing" for rank in missing]
    words += [f"rank {one.rank}: {one.facts['reason'] or one.facts['status']}" for one in broken]
    info["status"], info["reason"] = "partial", "; ".join(words)


def _describe_member(member: RankTables, leader: RankTables) -> dict[str, Any]:
    facts = {key: member.facts.get(key) for key in _FACTS}
    whole = member.frames["steps"].filter(pl.col("phase") == "step")
    errors_ns = [one["error_ns"] for one in member.facts.get("clocks") or []]
    facts["steps"] = whole.height
    facts["one_clock"] = member.rank == 0 or _shares_clock(member, leader)
    facts["clock_error_ns"] = 0 if member.rank == 0 else max(errors_ns, default=None)
    return facts


def _shares_clock(member: RankTables, leader: RankTables) -> bool:
    """Processes of one machine read the same clock; what the exchange measured must not deny it."""
    boot = member.facts.get("boot")
    same = boot is not None and boot == leader.facts.get("boot")
    return same and all(
        abs(one["offset_ns"]) <= 2 * one["error_ns"] for one in member.facts.get("clocks") or ()
    )


def _on_common_clock(member: RankTables, leader: RankTables, frame: pl.DataFrame) -> pl.DataFrame:
    readings = member.facts.get("clocks") or []
    if member.rank == 0 or not readings or "start_ns" not in frame.columns or _shares_clock(member, leader):
        return frame
    first, last = readings[0], readings[-1]
    apart_ns = last["time_ns"] - first["time_ns"]
    drift = (last["offset_ns"] - first["offset_ns"]) / apart_ns if apart_ns else 0.0
    since_ns = pl.col("start_ns") - first["time_ns"]
    shift_ns = (since_ns * drift).round().cast(pl.Int64) + first["offset_ns"]
    return frame.with_columns(pl.col("start_ns") + shift_ns)


def _add_rank(frame: pl.DataFrame, rank: int, target: str) -> pl.DataFrame:
    schema = polars_schema(target)
    return frame.with_columns(pl.lit(rank, pl.Int64).alias("rank")).select(
        pl.col(name).cast(kind) for name, kind in schema.items()
    )


def _bring_home(run: Path, member: RankTables) -> str:
    """Move a rank's own run below the common one where this host can reach it; its name from there on."""
    source, target = Path(member.facts["folder"]), run / "ranks" / str(member.rank)
    if member.rank == 0:
        return "."
    if member.facts.get("boot") == boot_identity() and (source / "run.json").is_file():
        target.parent.mkdir(exist_ok=True)
        shutil.move(source, target)
        return str(target.relative_to(run))
    return f"{source.name} on {member.facts.get('host')}"
