"""How far a sweep is, from its store alone; also while it runs, and after it was killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from detscope.errors import UsageError
from detscope.sweep.keys import list_differences
from detscope.sweep.outcome import is_failure
from detscope.sweep.prepare import PreparedTrial
from detscope.sweep.store import SweepStore

LAST_FAILURES = 5


def read_accepted(store: SweepStore) -> dict[str, tuple[str, str]]:
    """Kind and status of every trial that has a result, by key."""
    rows = store.query_rows("SELECT trial, kind, status FROM attempts WHERE role = 'accepted'")
    return {row["trial"]: (row["kind"], row["status"]) for row in rows}


def refuse_other_identity(store: SweepStore, identity: dict[str, Any]) -> None:
    """Refuse to go on in a store that was measured otherwise: figures would be mixed."""
    found = [list_differences(kept, identity) for kept in store.read_identities()]
    if found and all(found):
        from detscope.errors import SettingsError

        raise SettingsError(
            [f"{store.path} was measured otherwise: {line}" for line in found[0]],
            "measure into another file with --store FILE; `detscope sweep merge` brings both together",
        )


def refuse_unfinished(
    store: SweepStore, trials: Sequence[PreparedTrial], done: dict[str, Any], resume: bool
) -> None:
    """Going on with what was begun is asked for, never assumed."""
    have = sum(one.trial_key in done for one in trials)
    if have and have < len(trials) and not resume:
        raise UsageError(
            f"{store.path} holds {have} of {len(trials)} trials already",
            "--resume runs the rest; --store FILE begins anew",
        )


def summarize_store(store: SweepStore) -> dict[str, Any]:
    """Counts per device and altogether, attempts by role, the last failures, the plans."""
    rows = store.query_rows(
        "SELECT attempt_id, device, kind, status, role, message, network, stage, batch_size FROM attempts"
        " ORDER BY rowid"
    )
    accepted = [row for row in rows if row["role"] == "accepted"]
    planned = store.query_rows(
        "SELECT DISTINCT trial, device FROM planned WHERE plan IN"
        " (SELECT plan FROM plans WHERE rowid IN (SELECT max(rowid) FROM plans GROUP BY name))"
    )
    done = set(read_accepted(store))
    left = Counter(row["device"] for row in planned if row["trial"] not in done)
    devices = sorted({row["device"] for row in accepted} | {row["device"] for row in planned})
    kinds: dict[str, list[str]] = {device: [] for device in devices}
    for row in accepted:
        kinds[row["device"]].append(row["kind"])
    plans = store.query_rows("SELECT name, made_at FROM plans ORDER BY rowid")
    return {
        "store": str(store.path),
        "plans": plans,
        "devices": [
            {"device": device, **count_kinds(kinds[device]), "left": left[device]} for device in devices
        ],
        **count_kinds([row["kind"] for row in accepted]),
        "left": sum(left.values()),
        "retried": sum(row["role"] == "retried" for row in rows),
        "duplicates": sum(row["role"] == "duplicate" for row in rows),
        "statuses": dict(Counter(row["status"] for row in accepted)),
        "last_failures": [
            {name: row[name] for name in ("network", "stage", "batch_size", "device", "status", "message")}
            for row in accepted
            if is_failure(row["kind"])
        ][-LAST_FAILURES:],
    }  # fmt: skip


def count_kinds(kinds: Sequence[str]) -> dict[str, int]:
    """done, failed and skipped of some endings; done counts what was measured."""
    return {
        "done": sum(kind == "ok" for kind in kinds),
        "failed": sum(is_failure(kind) for kind in kinds),
        "skipped": sum(kind == "skipped" for kind in kinds),
    }
