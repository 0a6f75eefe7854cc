"""The tables of a sweep's store. The version is raised when an older reader would misread a newer store.

Version history:
1 - environments, plans, planned, attempts.
"""

from __future__ import annotations

from collections.abc import Mapping

STORE_VERSION = 1
APPLICATION_ID = 0x64736377  # "dscw", in the header of the file: it is ours

# column -> type; every column is null where it was not measured, and never zero instead
IDENTITY: Mapping[str, str] = {
    "trial": "TEXT NOT NULL",  # key of configuration, device, environment and repetition
    "configuration": "TEXT NOT NULL",  # key of the axes' values, network's files, limits and measuring
    "device": "TEXT NOT NULL",  # "cpu", "jetson/cuda:0"
    "environment": "TEXT NOT NULL REFERENCES environments(environment)",
    "repetition": "INTEGER NOT NULL",
    "network": "TEXT NOT NULL",
    "stage": "TEXT NOT NULL",
    "batch_size": "INTEGER NOT NULL",
    "image_size": "INTEGER",  # as asked for; null: the network's own, see image_pixels
    "precision": "TEXT",
    "num_workers": "INTEGER",
    "prefetch_factor": "INTEGER",
    "threads": "INTEGER",
    "optimizer": "TEXT",
    "channels_last": "INTEGER",
    "seed": "INTEGER",
    "variables": "TEXT NOT NULL",
    "fingerprint": "TEXT NOT NULL",  # of the network's files, or name:NAME
}
ENDING: Mapping[str, str] = {
    "attempt": "INTEGER NOT NULL",
    "role": "TEXT NOT NULL",  # accepted, retried, duplicate
    "kind": "TEXT NOT NULL",  # ok, oom_host, oom_device, timeout, crashed, exited, error, skipped
    "status": "TEXT NOT NULL",  # the same with signal, code, exception or reason
    "message": "TEXT",
    "seconds": "REAL",  # of the trial, from its process being ready to its result
    "ended_at": "TEXT NOT NULL",
    "isolation": "TEXT",
}
FIGURES: Mapping[str, str] = {
    "step_ms": "REAL",  # median, with its 95 % interval
    "step_low_ms": "REAL",
    "step_high_ms": "REAL",
    "forward_ms": "REAL",
    "forward_low_ms": "REAL",
    "forward_high_ms": "REAL",
    "backward_ms": "REAL",
    "backward_low_ms": "REAL",
    "backward_high_ms": "REAL",
    "steps": "INTEGER",
    "slow_first_steps": "INTEGER",
    "stopped_by": "TEXT",  # interval, steps, time: why measuring ended
    "interval_width": "REAL",  # over the median
    "interval_reached": "INTEGER",  # 0: a limit came first
    "spread": "REAL",
    "stability": "TEXT",
    "images": "INTEGER",
    "images_per_s": "REAL",
    "allocated_bytes": "INTEGER",  # peak of live tensors
    "held_bytes": "INTEGER",  # of it, what lives between steps
    "reserved_bytes": "INTEGER",  # by CUDA's allocator
    "process_bytes": "INTEGER",  # peak resident memory of the process
    "process_base_bytes": "INTEGER",  # of it, before the network was built
    "device_used_bytes": "INTEGER",
    "parameters": "INTEGER",
    "network_kind": "TEXT",
    "image_pixels": "INTEGER",
    "torch_threads": "INTEGER",
}
COLUMNS: Mapping[str, str] = {
    "attempt_id": "TEXT PRIMARY KEY",
    **IDENTITY,
    **ENDING,
    **FIGURES,
    "more": "TEXT",
}
ENVIRONMENTS: Mapping[str, str] = {"environment": "TEXT PRIMARY KEY", "facts": "TEXT NOT NULL"}
PLANS: Mapping[str, str] = {
    "plan": "TEXT PRIMARY KEY",
    "name": "TEXT",
    "identity": "TEXT",
    "text": "TEXT",
    "made_at": "TEXT",
}
PLANNED: Mapping[str, str] = {
    "plan": "TEXT NOT NULL",
    "position": "INTEGER NOT NULL",
    "trial": "TEXT NOT NULL",
    "words": "TEXT NOT NULL",
    "device": "TEXT NOT NULL",
}
_STORED_AS = {"TEXT": "'text'", "INTEGER": "'integer'", "REAL": "'real', 'integer'"}


def statements() -> list[str]:
    """What makes an empty store."""
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    environments = ", ".join(f"{name} {kind}" for name, kind in ENVIRONMENTS.items())
    planned = ", ".join(f"{name} {kind}" for name, kind in PLANNED.items())
    plans = ", ".join(f"{name} {kind}" for name, kind in PLANS.items())
    return [
        f"CREATE TABLE environments ({environments})",
        f"CREATE TABLE plans ({plans})",
        f"CREATE TABLE planned ({planned}, PRIMARY KEY (plan, trial))",
        f"CREATE TABLE attempts ({columns})",
        "CREATE UNIQUE INDEX one_result_per_trial ON attempts (trial) WHERE role = 'accepted'",
        "CREATE UNIQUE INDEX one_result ON attempts (configuration, device, environment, repetition)"
        " WHERE role = 'accepted'",
        "CREATE INDEX attempts_of_trial ON attempts (trial)",
        f"PRAGMA application_id = {APPLICATION_ID}",
        f"PRAGMA user_version = {STORE_VERSION}",
    ]


def plain_sql(statement: str) -> str:
    """A statement without its spacing."""
    return " ".join(statement.split())


def wrong_values() -> dict[str, str]:
    """Of every table the condition of a row with a value of another type, or a number that nothing has."""
    tables = {"environments": ENVIRONMENTS, "plans": PLANS, "planned": PLANNED, "attempts": COLUMNS}
    return {
        table: " OR ".join(_wrong(name, kind) for name, kind in columns.items())
        for table, columns in tables.items()
    }


def _wrong(name: str, kind: str) -> str:
    stored, *rules = kind.split()
    types = _STORED_AS[stored] + ("" if "NOT" in rules or "PRIMARY" in rules else ", 'null'")
    outside = "" if stored == "TEXT" else f" OR {name} < {int(name == 'batch_size')} OR {name} > 1e18"
    return f"typeof({name}) NOT IN ({types}){outside}"
