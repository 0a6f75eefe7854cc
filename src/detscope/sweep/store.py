"""The store of a sweep: one SQLite file, one row per attempt, one accepted result per trial.

The version is raised when an older reader would misread a newer store. Version history:
1 - environments, plans, planned, attempts.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from detscope.errors import InputError, MachineError, UsageError
from detscope.limits import require_within
from detscope.machine.sqlite_watch import QueryWatch
from detscope.runs.atomic import storage_error
from detscope.sweep.keys import canonical_json, make_key
from detscope.sweep.outcome import Outcome

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
TABLES = {"environments": ENVIRONMENTS, "plans": PLANS, "planned": PLANNED, "attempts": COLUMNS}
_STORED_AS = {"TEXT": "'text'", "INTEGER": "'integer'", "REAL": "'real', 'integer'"}
BUSY_S = 120.0
_ROWS_AT_ONCE = 1000
_FAILURES = (sqlite3.Error, UnicodeError)  # Python cannot read every name that SQLite complains about
_HEADER = b"SQLite format 3\x00"


def list_statements() -> list[str]:
    """What makes an empty store."""
    made = {table: [f"{name} {kind}" for name, kind in columns.items()] for table, columns in TABLES.items()}
    made["planned"].append("PRIMARY KEY (plan, trial)")
    return [
        *(f"CREATE TABLE {table} ({', '.join(parts)})" for table, parts in made.items()),
        "CREATE UNIQUE INDEX one_result_per_trial ON attempts (trial) WHERE role = 'accepted'",
        "CREATE UNIQUE INDEX one_result ON attempts (configuration, device, environment, repetition)"
        " WHERE role = 'accepted'",
        "CREATE INDEX attempts_of_trial ON attempts (trial)",
        f"PRAGMA application_id = {APPLICATION_ID}",
        f"PRAGMA user_version = {STORE_VERSION}",
    ]


def wrong_condition(columns: Mapping[str, str]) -> str:
    """The condition of a table's rows with a value of another type, or a number that nothing has."""
    found = []
    for name, kind in columns.items():
        stored, *rules = kind.split()
        types = _STORED_AS[stored] + ("" if "NOT" in rules or "PRIMARY" in rules else ", 'null'")
        outside = "" if stored == "TEXT" else f" OR {name} < {int(name == 'batch_size')} OR {name} > 1e18"
        found.append(f"typeof({name}) NOT IN ({types}){outside}")
    return " OR ".join(found)


@contextmanager
def lock_store(store: Path) -> Iterator[None]:
    """Hold the store for the block; the file beside it is gone afterwards. A killed holder holds nothing.

    Our own: older versions of filelock, which we allow, leave their file behind.
    """
    path = store.with_name(f"{store.name}-lock")
    descriptor = _open_lock(path, store)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _open_lock(path: Path, store: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise storage_error(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # whoever held it may have taken the file away between our two calls
            if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
            os.close(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            raise UsageError(
                f"{store}: another sweep is running on this store", "wait for it, or give --store FILE"
            ) from None


class SweepStore:
    """An open store. Every writing method is one transaction: done and kept, or not begun."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        _check_file(path, create)
        try:
            self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            self._db.row_factory = sqlite3.Row
            self._watch = QueryWatch(self._db, path.name)
            self._open_database(create)
        except _FAILURES as error:
            raise _explain_error(path, error) from error

    def _open_database(self, create: bool) -> None:
        if not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            if not create:
                raise InputError(f"{self.path}: an empty file, not a store", "give the file of a sweep")
            self._db.execute("PRAGMA journal_mode = WAL")
            with self._begin_transaction():
                if not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():  # another one was quicker
                    for statement in list_statements():
                        self._db.execute(statement)
        application, version = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if application != APPLICATION_ID:
            raise InputError(f"{self.path}: a database of something else", "give the file of a sweep")
        if version > STORE_VERSION:
            raise InputError(
                f"{self.path}: made by a newer detscope (store version {version})", "update detscope"
            )
        self._check_content()
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")  # a row that was acknowledged outlives a power cut

    def _check_content(self) -> None:
        """Our own tables alone, every value of its type: a view or a trigger could run for ever."""
        made = self.query_rows("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        # words, without their spacing
        own = {tuple(text.split()) for text in list_statements() if text.startswith("CREATE")}
        strange = [row for row in made if tuple(str(row["sql"]).split()) not in own]
        if strange or len(made) < len(own):
            what = f"{strange[0]['type']} {strange[0]['name']!s:.40}" if strange else "tables are missing"
            raise _make_damage_error(self.path, f"not as a sweep makes it: {what}")
        damage = self.query_rows("PRAGMA quick_check(1)")[0]["quick_check"]
        if damage != "ok":
            raise _make_damage_error(self.path, str(damage))
        for table, columns in TABLES.items():
            rows = self.query_rows(f"SELECT count(*) AS count FROM {table}")[0]["count"]
            require_within("store_rows", rows, f"{self.path}: {table}")
            wrong = self.query_rows(
                f"SELECT rowid AS row FROM {table} WHERE {wrong_condition(columns)} LIMIT 1"
            )
            if wrong:
                raise _make_damage_error(
                    self.path, f"row {wrong[0]['row']} of {table} has values of other types"
                )

    @contextmanager
    def _begin_transaction(self) -> Iterator[None]:
        try:
            # IMMEDIATE: waits for other writers here, where waiting is allowed, and not half-way
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except _FAILURES as error:
            raise _explain_error(self.path, error) from error

    def keep_environment(self, facts: Mapping[str, Any]) -> str:
        """Keep an environment's facts; its key."""
        key = make_key(facts)
        with self._begin_transaction():
            self._db.execute("INSERT OR IGNORE INTO environments VALUES (?, ?)", (key, canonical_json(facts)))
        return key

    def keep_plan(
        self, name: str, text: str, identity: Mapping[str, Any], planned: Sequence[tuple[str, str, str]]
    ) -> str:
        """Keep a plan and its trials as (key, words, device); the same plan again is kept once."""
        key = make_key([name, text, identity])
        rows = [(key, position, *trial) for position, trial in enumerate(planned)]
        with self._begin_transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?, ?)",  # the plan used last is the last row
                (key, name, canonical_json(identity), text, now_text()),
            )
            self._db.executemany("INSERT OR IGNORE INTO planned VALUES (?, ?, ?, ?, ?)", rows)
        return key

    def record_attempt(
        self,
        identity: Mapping[str, Any],
        outcome: Outcome,
        *,
        attempt: int = 1,
        final: bool = True,
        isolation: str = "process",
    ) -> str:
        """Keep an attempt; its role: "accepted", "retried" if not final, "duplicate" if it came too late."""
        row = make_attempt_row(identity, outcome, attempt, isolation)
        return self.insert_attempts([(row, "accepted" if final else "retried")])[0]

    def insert_attempts(self, rows: Iterable[tuple[Mapping[str, Any], str]]) -> list[str]:
        """Insert rows with their roles, all or none; a trial's second result is kept apart as a duplicate."""
        names = list(COLUMNS)
        text = f"INSERT INTO attempts ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        same = (
            "SELECT 1 FROM attempts WHERE role = 'accepted' AND (trial = ? OR (configuration = ?"
            " AND device = ? AND environment = ? AND repetition = ?))"
        )
        keys = ("trial", "configuration", "device", "environment", "repetition")
        roles = []
        with self._begin_transaction():
            for row, role in rows:
                if role == "accepted" and self._db.execute(same, [row[key] for key in keys]).fetchone():
                    role = "duplicate"
                self._db.execute(text, [role if name == "role" else row.get(name) for name in names])
                roles.append(role)
        return roles

    def reopen_trials(self, trials: Iterable[str]) -> None:
        """Take back the results of trials that are to be run again; they stay as earlier attempts."""
        with self._begin_transaction():
            self._db.executemany(
                "UPDATE attempts SET role = 'retried' WHERE role = 'accepted' AND trial = ?",
                [(trial,) for trial in trials],
            )

    def copy_plans(self, other: SweepStore) -> None:
        """Take over the environments and plans of another store."""
        names = ("environments", "plans", "planned")
        found = {name: other.query_rows(f"SELECT * FROM {name}") for name in names}
        with self._begin_transaction():
            for name, rows in found.items():
                marks = ", ".join("?" * len(TABLES[name]))
                values = [tuple(row.values()) for row in rows]
                self._db.executemany(f"INSERT OR IGNORE INTO {name} VALUES ({marks})", values)

    def query_rows(self, text: str, values: Iterable[object] = ()) -> list[dict[str, Any]]:
        """Rows of a SELECT."""
        found: list[dict[str, Any]] = []
        try:
            with self._watch.watch_query():
                cursor = self._db.execute(text, tuple(values))
            while True:
                with self._watch.watch_query():
                    rows = cursor.fetchmany(_ROWS_AT_ONCE)
                if not rows:
                    return found
                found += map(dict, rows)
        except _FAILURES as error:
            raise _explain_error(self.path, error) from error

    def read_attempts(self, role: str | None = "accepted") -> list[dict[str, Any]]:
        """Attempts of a role (None: all), in the order in which they were kept."""
        found = self.query_rows("SELECT * FROM attempts WHERE role = ifnull(?, role) ORDER BY rowid", (role,))
        for row in found:
            row["more"] = self._parse_object(row["more"]) if row["more"] else {}
        return found

    def read_identities(self) -> list[dict[str, Any]]:
        """How the plans of this store were measured, the last first."""
        rows = self.query_rows("SELECT identity FROM plans WHERE identity IS NOT NULL ORDER BY rowid DESC")
        return [self._parse_object(row["identity"]) for row in rows]

    def _parse_object(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _make_damage_error(self.path, f"{text[:40]!r} is not JSON") from error
        if not isinstance(found, dict):
            raise _make_damage_error(self.path, f"{text[:40]!r} is not an object")
        return found

    def read_environments(self) -> dict[str, dict[str, Any]]:
        """Facts of every environment, by key."""
        rows = self.query_rows("SELECT * FROM environments")
        return {row["environment"]: self._parse_object(row["facts"]) for row in rows}

    def close(self) -> None:
        """Close; what SQLite kept beside the file goes into it, so that one file is everything."""
        self._db.close()

    def __enter__(self) -> SweepStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_rows(path: Path, role: str | None = "accepted") -> list[dict[str, Any]]:
    """The rows of a store with the facts of their environment under "environment_facts"."""
    with SweepStore(path) as store:
        facts = store.read_environments()
        return [
            {**row, "environment_facts": facts.get(row["environment"], {})}
            for row in store.read_attempts(role)
        ]


def make_attempt_row(
    identity: Mapping[str, Any], outcome: Outcome, attempt: int, isolation: str, attempt_id: str | None = None
) -> dict[str, Any]:
    """An attempt as a row; figures without a column of their own are packed."""
    rest = {name: value for name, value in outcome.result.items() if name not in FIGURES}
    return {
        **identity,
        "attempt_id": attempt_id or uuid.uuid4().hex,
        "attempt": attempt,
        "kind": outcome.kind,
        "status": outcome.status_text,
        "message": outcome.message or None,
        "seconds": outcome.seconds,
        "ended_at": now_text(),
        "isolation": isolation,
        **{name: outcome.result.get(name) for name in FIGURES},
        "more": canonical_json(rest) if rest else None,
    }


def now_text() -> str:
    """UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _check_file(path: Path, create: bool) -> None:
    """Refuse, before SQLite touches it, what is not a database; an empty file has nothing to lose."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder, not a store", "give the file of a sweep")
    try:
        with path.open("rb") as file:
            header = file.read(len(_HEADER))
    except FileNotFoundError:
        if not create:
            raise InputError(
                f"{path}: no such store", "give the file of a sweep: detscope sweep PLAN"
            ) from None
        if not path.parent.is_dir():
            raise MachineError(f"{path.parent}: no such folder", "make it first") from None
        return
    except OSError as error:
        raise MachineError(
            f"{path}: cannot be read: {error.strerror}", "look at the path and its rights"
        ) from error
    if header and header != _HEADER:
        raise _make_damage_error(path, "not a database")


def _explain_error(path: Path, error: sqlite3.Error | UnicodeError) -> BaseException:
    text = str(error)
    if text == "interrupted":
        return KeyboardInterrupt()
    if "disk is full" in text:
        return MachineError(f"no space left while writing {path}", "free some space and use --resume")
    if "readonly" in text or "unable to open" in text:
        return MachineError(f"cannot write {path}: {text}", "choose a writable place with --store FILE")
    if "locked" in text:
        return MachineError(f"{path}: others have been writing to it for {BUSY_S:.0f} s", "try again")
    return _make_damage_error(path, text)


def _make_damage_error(path: Path, what: str) -> InputError:
    return InputError(
        f"{path}: the store is damaged and was left as it is: {what.splitlines()[0]}",
        "take a copy of it from elsewhere, or measure into a new one with --store FILE",
    )
