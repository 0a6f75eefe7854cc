"""Results out of stores and into them: CSV, Parquet, the older toolflow's files, other machines' stores.

The older files are `|`-separated, one per network and level, memory in MiB and latency in ms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from detscope.errors import InputError, UsageError
from detscope.limits import read_csv_rows
from detscope.runs.atomic import storage_error, write_atomically, write_text
from detscope.sweep.keys import canonical_json, make_identity, make_key
from detscope.sweep.outcome import Outcome
from detscope.sweep.settings import STAGES
from detscope.sweep.store import COLUMNS, SweepStore, make_attempt_row, read_rows

MEMORY_COLUMNS = (
    "passed", "mem_alloc", "mem_reserved", "mem_used", "mem_avail", "free", "capacity",
    "test_var", "bs", "dataset", "net_name", "model",
)  # fmt: skip
LATENCY_COLUMNS = ("passed", "latency", "test_var", "bs", "dataset", "net_name", "model")
_TYPES = {"TEXT": "String", "INTEGER": "Int64", "REAL": "Float64"}
_MIB = 2**20
_NAME = re.compile(r"(?P<net>.+)_(?P<level>\d{1,3})-gt")
_LEVEL = re.compile(r"[-_](?:p|l|level)?(\d{1,2})(?:[-_]|$)")
_OTHER_NAMES = {"net": "net_name", "prune_level": "level"}
_FAILED = "-1"


def export_rows(store: Path, form: str, out: Path | None = None) -> list[Path]:
    """Write the accepted rows; the paths written. What exists already is not overwritten."""
    rows = read_rows(store)
    if not rows:
        raise InputError(f"{store}: no results to export", "run the sweep first")
    if form == "older":
        return write_older(rows, out or store.with_name(f"{store.stem}-older"))
    path = out or store.with_suffix(f".{form}")
    if path.exists():
        raise UsageError(f"{path}: exists already", "give another name with --out, or remove it")
    import polars

    kinds = {name: getattr(polars, _TYPES[kind.split()[0]]) for name, kind in COLUMNS.items()}
    kinds["environment_facts"] = polars.String
    packed = ("more", "environment_facts")
    plain = [{**row, **{name: canonical_json(row[name]) for name in packed}} for row in rows]
    frame = polars.DataFrame(plain, schema=kinds)
    try:
        write_atomically(path, frame.write_csv if form == "csv" else frame.write_parquet)
    except FileNotFoundError as error:
        raise storage_error(path, error) from error
    return [path]


def import_older(files: Sequence[Path], store: Path, device: str, stage: str) -> dict[str, int]:
    """Read older files, or all in their folders, into a store; rows it has already are left alone."""
    if stage not in STAGES:
        raise UsageError(f"--stage {stage!r} is not one of {', '.join(STAGES)}", "try --stage training")
    paths = [path for given in files for path in _list_files(given)]
    rows = [row for path in paths for row in _read_older_rows(path)]  # all are readable, or nothing is kept
    known = 0
    new: list[tuple[dict[str, Any], str]] = []
    with SweepStore(store, create=True) as opened:
        environment = opened.keep_environment({"imported": "files of the older toolflow", "device": device})
        have = {row["attempt_id"] for row in opened.query_rows("SELECT attempt_id FROM attempts")}
        for row in rows:
            for identity, outcome in _make_attempts(row, device, stage, environment):
                name = make_key([identity["trial"], outcome.kind, outcome.result])
                if name in have:
                    known += 1
                    continue
                have.add(name)
                new.append((make_attempt_row(identity, outcome, 1, "older", name), "accepted"))
        opened.insert_attempts(new)
    return {"files": len(paths), "rows": len(new), "known": known}


def _list_files(given: Path) -> Iterable[Path]:
    if given.is_file():
        return [given]
    if not given.is_dir():
        raise InputError(f"{given}: no such file", "give files of the older toolflow, or their folder")
    found = sorted(path for path in given.rglob("*.csv") if path.is_file())
    if not found:
        raise InputError(f"{given}: no .csv file in it", "give the folder that holds memory/ and latency/")
    return found


def _read_older_rows(path: Path) -> Iterator[dict[str, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text file", "give files of the older toolflow") from None
    first = text.partition("\n")[0]
    reader = read_csv_rows(path, StringIO(text), "|" if "|" in first else ",")
    names = [_OTHER_NAMES.get(name.strip(), name.strip()) for name in reader.fieldnames or ()]
    if not {"net_name", "bs"} <= set(names) or not {"mem_alloc", "mem_used", "latency"} & set(names):
        raise InputError(
            f"{path}: not a memory or latency file of the older toolflow",
            f"its first line should be {'|'.join(LATENCY_COLUMNS)}",
        )
    reader.fieldnames = names
    named = _NAME.fullmatch(path.stem)
    for row in reader:
        if None in row or None in row.values():
            raise InputError(
                f"{path}, line {reader.line_num}: expected {len(names)} values",
                "as many as its first line names",
            )
        found = _LEVEL.search(row.get("model", ""))
        row.setdefault("level", named["level"] if named else found[1] if found else "0")
        row["_where"] = f"{path}, line {reader.line_num}"
        yield row


def _make_attempts(
    row: Mapping[str, str], device: str, stage: str, environment: str
) -> Iterator[tuple[dict[str, Any], Outcome]]:
    """Memory and latency were measured in processes of their own: they are attempts of their own."""
    passed = row.get("passed", "True").strip().lower() in ("true", "1", "1.0")
    kept = ("test_var", "model", "mem_avail", "free", "capacity")
    extra = {f"older_{name}": row[name] for name in kept if name in row}
    batch, level = (_parse_whole(row, name) for name in ("bs", "level"))
    network = f"{row['net_name'].strip()}_{level}"
    dataset = (row.get("dataset") or "imagenet").strip()
    for variable, first in (("memory", "mem_alloc"), ("latency", "latency")):
        if first not in row:
            continue
        result: dict[str, Any] = {"images": batch, "level": level, **extra}
        if passed and variable == "memory":
            for ours, theirs in (
                ("allocated_bytes", "mem_alloc"),
                ("reserved_bytes", "mem_reserved"),
                ("device_used_bytes", "mem_used"),
            ):
                value = _parse_number(row, theirs)
                result[ours] = None if value is None else round(value * _MIB)
        elif passed:
            latency = _parse_number(row, "latency")
            result |= {"step_ms": latency, "images_per_s": latency and batch / latency * 1e3}
        values = {
            "network": network,
            "stage": stage,
            "batch_size": batch,
            "image_size": 32 if "cifar" in dataset.lower() else 224,
            "variables": variable,
            "precision": "fp32",
            "optimizer": "sgd",
        }
        # failed rows hold -1 or what the row before left behind: not figures
        kind, detail = ("ok", "") if passed else ("error", "failed, says the older file")
        identity = make_identity(values, f"older:{network}", (), device, environment)
        yield identity, Outcome(kind, detail, result=result)


def _parse_number(row: Mapping[str, str], name: str) -> float | None:
    text = row[name].strip()
    if text in ("", _FAILED, "-1.0"):
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"{row['_where']}: {name}: expected a number, got {text[:40]!r}",
            "correct the line, or leave it out",
        ) from None


def _parse_whole(row: Mapping[str, str], name: str) -> int:
    try:
        return int(float(row[name]))
    except (ValueError, OverflowError):
        raise InputError(
            f"{row['_where']}: {name}: expected a number, got {row[name][:40]!r}",
            "correct the line, or leave it out",
        ) from None


def write_older(rows: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write memory/ and latency/ files as the older toolflow did; what failed holds -1."""
    if folder.exists():
        raise UsageError(f"{folder}: exists already", "give another folder with --out")
    files: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        network, level = split_level(row)
        for kind in ("memory", "latency"):
            if kind in row["variables"]:
                files.setdefault((kind, network, level), []).append(_make_line(row, network, kind))
    paths = []
    for (kind, network, level), lines in files.items():
        safe = re.sub(r"[^\w.-]+", "_", network) or "network"
        path = folder / kind / f"{safe}_{level}-gt.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = MEMORY_COLUMNS if kind == "memory" else LATENCY_COLUMNS
        write_text(path, "\n".join(["|".join(columns), *lines]) + "\n")
        paths.append(path)
    return paths


def split_level(row: Mapping[str, Any]) -> tuple[str, str]:
    """A network's name and level: `resnet18_30`, `pruned/resnet18-l1-p30-s0`; unpruned ones have level 0."""
    name = Path(str(row["network"])).name
    older = re.fullmatch(r"(.+)_(\d{1,2})", name) if str(row["fingerprint"]).startswith("older:") else None
    pruned = re.fullmatch(r"(.+?)-(?:[a-z0-9]+)-p(\d{1,2})(?:-.*)?", name)
    found = older or pruned
    return (found[1], found[2]) if found else (name, "0")


def _make_line(row: Mapping[str, Any], network: str, kind: str) -> str:
    more, passed = row["more"], row["kind"] == "ok"

    def show(value: float | None, divisor: int | None = None) -> str:
        if value is None or not passed:
            return _FAILED
        return repr(value if divisor is None else value / divisor)

    if kind == "memory":
        used = row["device_used_bytes"] if row["device_used_bytes"] is not None else row["process_bytes"]
        figures = [show(size, _MIB) for size in (row["allocated_bytes"], row["reserved_bytes"], used)]
        figures += [str(more.get(f"older_{name}", _FAILED)) for name in ("mem_avail", "free", "capacity")]
    else:
        figures = [show(row["step_ms"])]
    dataset = "cifar10" if row["image_size"] == 32 else "imagenet"
    told = [str(more.get("older_test_var", kind)), str(row["batch_size"]), dataset, network]
    values = [str(passed), *figures, *told, str(more.get("older_model", row["network"]))]
    return "|".join(value.replace("|", "_").replace("\n", " ") for value in values)


@dataclass(frozen=True)
class MergeResult:
    """What came of merging."""

    path: Path
    rows: int
    duplicates: int  # results of trials that another store had measured already; kept apart
    known: int  # attempts that several stores had


def merge_stores(sources: Sequence[Path], out: Path) -> MergeResult:
    """Merge stores into a new one; where two measured the same trial, the first named is accepted."""
    if out.exists():
        raise UsageError(f"{out}: exists already", "give --out the name of a new file")
    if len({source.resolve() for source in sources}) < 2:
        raise UsageError("merging needs at least two stores", "detscope sweep merge A.db B.db --out C.db")
    for source in sources:
        SweepStore(source).close()  # all are readable, or nothing is begun
    temporary = out.with_name(f".{out.name}.part")
    temporary.unlink(missing_ok=True)
    rows = duplicates = known = 0
    try:
        with SweepStore(temporary, create=True) as target:
            for source in sources:
                with SweepStore(source) as store:
                    target.copy_plans(store)
                    have = {row["attempt_id"] for row in target.query_rows("SELECT attempt_id FROM attempts")}
                    found = store.query_rows("SELECT * FROM attempts ORDER BY rowid")
                new = [(row, row["role"]) for row in found if row["attempt_id"] not in have]
                roles = target.insert_attempts(new)
                rows, known = rows + len(new), known + len(found) - len(new)
                duplicates += sum(role != asked for role, (_, asked) in zip(roles, new, strict=True))
        temporary.replace(out)
    finally:
        for ending in ("", "-wal", "-shm"):
            Path(f"{temporary}{ending}").unlink(missing_ok=True)
    return MergeResult(out, rows, duplicates, known)
