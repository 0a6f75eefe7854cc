"""Stores of several machines become one: every attempt once, one accepted result per trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from detscope.errors import UsageError
from detscope.sweep.store import Store


@dataclass(frozen=True)
class Merged:
    """What came of merging."""

    path: Path
    rows: int
    duplicates: int  # results of trials that another store had measured already; kept apart
    known: int  # attempts that several stores had


def merge(sources: Sequence[Path], out: Path) -> Merged:
    """Merge stores into a new one; where two measured the same trial, the first named is accepted."""
    if out.exists():
        raise UsageError(f"{out}: exists already", "give --out the name of a new file")
    if len({source.resolve() for source in sources}) < 2:
        raise UsageError("merging needs at least two stores", "detscope sweep merge A.db B.db --out C.db")
    for source in sources:
        Store(source).close()  # all are readable, or nothing is begun
    temporary = out.with_name(f".{out.name}.part")
    temporary.unlink(missing_ok=True)
    try:
        with Store(temporary, create=True) as target:
            counts = [_copy(source, target) for source in sources]
        temporary.replace(out)
    finally:
        for ending in ("", "-wal", "-shm"):
            Path(f"{temporary}{ending}").unlink(missing_ok=True)
    return Merged(out, *(sum(column) for column in zip(*counts, strict=True)))


def _copy(source: Path, target: Store) -> tuple[int, int, int]:
    with Store(source) as store:
        target.copy_plans(store)
        have = {row["attempt_id"] for row in target.query("SELECT attempt_id FROM attempts")}
        found = store.query("SELECT * FROM attempts ORDER BY rowid")
    new = [(row, row["role"]) for row in found if row["attempt_id"] not in have]
    roles = target.insert(new)
    duplicates = sum(role != row["role"] for role, (row, _) in zip(roles, new, strict=True))
    return len(new), duplicates, len(found) - len(new)
