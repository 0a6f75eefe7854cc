"""What `fit` and `score` read: sweep stores, runs, exports, older CSVs; and which of their rows they use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from detscope.errors import InputError, UsageError
from detscope.predict.layers.graph import LayerGraph
from detscope.predict.layers.lists import read_layers
from detscope.predict.samples import StepCase, StepSample, read_samples
from detscope.runs.folder import run_folders
from detscope.sessions.fit.networks import LAYERS, LayerLists
from detscope.sessions.fit.rows import (
    RUN_FILE,
    UNKNOWN,
    MeasuredRow,
    is_export,
    row_of_run,
    rows_of_export,
    rows_of_store,
)
from detscope.sweep.outcome import explain_unusable_latency

CONDITIONS = (
    "device",
    "environment",
    "precision",
    "threads",
    "optimizer",
    "channels_last",
    "num_workers",
    "image_size",
)
_PLACE = ("device", "environment")  # together: which machine it was
_SQLITE = b"SQLite format 3\x00"
_GIVE = "give a sweep's store, runs, or CSVs of measured steps with a layers.json beside them"


@dataclass
class MeasuredSamples:
    """Samples, what they have in common, and what was left out."""

    samples: list[StepSample] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)  # conditions of rows from stores and runs
    left_out: Counter[str] = field(default_factory=Counter)  # why -> rows
    notes: list[str] = field(default_factory=list)


def read_measured(
    files: Sequence[Path],
    *,
    stage: str = "training",
    where: Mapping[str, str] | None = None,
    all_devices: bool = False,
    told: Callable[[str], None] = lambda _: None,
) -> MeasuredSamples:
    """Samples of one device under the same conditions, those most often found unless `where` names others.

    With `all_devices` rows of every device stay, each sample with the name of its own.
    """
    found, rows = MeasuredSamples(), list[MeasuredRow]()
    graphs: dict[Path, dict[tuple[str, int], LayerGraph]] = {}
    for file in files:
        for one in _read_path(file, found):
            if isinstance(one, MeasuredRow):
                rows.append(one)
            else:
                found.samples += _older_samples(one, graphs)
    wanted = dict(where or {})
    if not all_devices:
        _keep_one_device(found, wanted.get("device"))
    if rows:
        rows = _select_usable(rows, stage, found)
        rows = _select_alike(rows, wanted, found, all_devices=all_devices)
        _add_samples(rows, found, LayerLists(told), all_devices=all_devices)
    if not found.samples:
        why = "; ".join(f"{count} rows: {words}" for words, count in found.left_out.items())
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        named = f"{files[0]}{more}" if files else "no file"
        raise InputError(f"nothing to learn from in {named}{why and ': '}{why:.300}", _GIVE)
    return found


def parse_where(text: str | None, device: str | None = None) -> dict[str, str]:
    """`precision=fp32,threads=1` as conditions that rows have to meet."""
    found = {"device": device} if device else {}
    for part in (text or "").split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if part.strip() and (not equals or not value or name not in CONDITIONS):
            raise UsageError(
                f"--where: {part.strip()!r} is no condition", f"NAME=VALUE: {', '.join(CONDITIONS)}"
            )
        if part.strip():
            found[name] = value
    return found


def _read_path(path: Path, found: MeasuredSamples) -> Iterator[MeasuredRow | Path]:
    """Rows of what a path names; the path itself where it is a CSV of the older kind."""
    if path.is_dir():
        yield from _read_folder(path, found)
        return
    if not path.is_file():
        raise InputError(f"{path} is not there", _GIVE)
    with path.open("rb") as file:
        head = file.read(4096)
    if head.startswith(_SQLITE):
        rows = rows_of_store(path)
        if not rows:
            raise InputError(f"{path}: no trial of this sweep has ended yet", "run the sweep first")
        yield from rows
    elif head.startswith(b"PAR1"):
        raise InputError(f"{path} is a Parquet file", "give the store itself, or export it as CSV")
    elif head[:1] == b"\x80":
        raise InputError(f"{path} is a pickle, and pickles are never opened: they can run code", _GIVE)
    elif is_export(head.partition(b"\n")[0].decode("utf-8", "replace").strip().split(",")):
        yield from rows_of_export(path, path.read_text(encoding="utf-8"))
    elif not head:
        raise InputError(f"{path}: an empty file", _GIVE)
    else:
        yield path


def _read_folder(path: Path, found: MeasuredSamples) -> Iterator[MeasuredRow]:
    folders = [path] if (path / RUN_FILE).exists() else run_folders(path)
    stores = sorted(path.glob("*.db")) if path not in folders else []
    if not folders and not stores:
        raise InputError(f"{path}: neither a run nor a folder of runs or stores", _GIVE)
    for store in stores:
        yield from rows_of_store(store)
    for folder in folders:
        try:
            row = row_of_run(folder)
        except InputError as error:  # one bad run costs that run alone, unless it is all there is
            if path in folders:
                raise
            row = error.message
        if isinstance(row, str):
            found.left_out[f"{folder.name}: {row}" if len(folders) == 1 else row] += 1
        else:
            yield row


def _older_samples(path: Path, graphs: dict[Path, dict[tuple[str, int], LayerGraph]]) -> list[StepSample]:
    layers = path.parent / LAYERS
    if not layers.is_file():
        raise InputError(f"no {LAYERS} beside {path}", "put the networks' lists of layers there")
    if layers not in graphs:
        graphs[layers] = read_layers(layers)
    return read_samples(path, graphs[layers])


def _keep_one_device(found: MeasuredSamples, wanted: str | None) -> None:
    """CSVs may name their devices: those of one stay."""
    names = Counter(one.device for one in found.samples if one.device)
    if not names:
        return
    kept = wanted or names.most_common(1)[0][0]
    others = [one for one in found.samples if one.device and one.device != kept]
    for name, count in Counter(one.device for one in others).items():
        found.left_out[f"device {name} (kept: {kept}; --device chooses)"] += count
    found.samples = [one for one in found.samples if not one.device or one.device == kept]


def _select_usable(rows: Sequence[MeasuredRow], stage: str, found: MeasuredSamples) -> list[MeasuredRow]:
    """Rows of the stage that ran or for which memory was too small.

    Latencies that are hardly known are left out: too few steps for an interval, or a very wide one.
    """
    kept = []
    for row in rows:
        low, high, why = row.latency_low_ms, row.latency_high_ms, None
        if row.latency_ms is None:
            pass
        elif row.steps is not None or (low is not None and high is not None):
            why = explain_unusable_latency(low, row.latency_ms, high)
        if why:
            found.left_out[f"latency only: {why}"] += 1
            row = replace(row, latency_ms=None, latency_low_ms=None, latency_high_ms=None)
        if row.stage != stage:
            found.left_out[f"stage {row.stage} (asked: {stage})"] += 1
        elif row.kind == "ok" and row.latency_ms is None and row.process_bytes is None:
            found.left_out["neither latency nor memory was measured"] += 1
        elif row.kind != "ok" and not row.ran_out:
            found.left_out["skipped by the sweep" if row.kind == "skipped" else f"failed: {row.kind}"] += 1
        else:
            kept.append(row)
    return kept


def _select_alike(
    rows: list[MeasuredRow], wanted: Mapping[str, str], found: MeasuredSamples, *, all_devices: bool
) -> list[MeasuredRow]:
    """Rows under the same conditions: those asked for, else those most often found."""
    for name in CONDITIONS:
        if all_devices and name in _PLACE and name not in wanted:
            continue
        counts = Counter(row.conditions[name] for row in rows if row.conditions[name] != UNKNOWN)
        if not counts:
            continue
        kept = _choose_value(name, counts, wanted.get(name))
        flag = "--device" if name == "device" else f"--where {name}=..."
        for value, count in counts.items():
            if value != kept:
                found.left_out[f"{name} {value} (kept: {kept}; {flag} chooses)"] += count
        rows = [row for row in rows if row.conditions[name] in (kept, UNKNOWN)]
        found.kept[name] = kept
    return rows


def _choose_value(name: str, counts: Counter[str], asked: str | None) -> str:
    if asked is None:
        return counts.most_common(1)[0][0]
    exact = [value for value in counts if value == asked]
    near = exact or [value for value in counts if name == "environment" and asked.lower() in value.lower()]
    if not near:
        raise InputError(f"no row has {name} {asked}", f"there are: {', '.join(counts):.200}")
    return near[0]


def _add_samples(
    rows: Sequence[MeasuredRow], found: MeasuredSamples, layers: LayerLists, *, all_devices: bool
) -> None:
    machines = {row.conditions["environment"] for row in rows}
    for row, listed in zip(rows, layers.find_networks(rows), strict=True):
        if isinstance(listed, str):
            found.left_out[f"network {row.network}: {listed}"] += 1
            continue
        place = row.conditions["device"]
        if all_devices and len(machines) > 1:
            place = f"{place} of {row.conditions['environment']}"
        found.samples.append(
            StepSample(
                StepCase(listed.graph, row.batch),
                listed.network,
                listed.level,
                row.allocated_bytes,
                row.reserved_bytes,
                row.process_bytes,
                row.latency_ms,
                not row.ran_out,
                place,
                row.latency_low_ms,
                row.latency_high_ms,
            )
        )
    found.notes += layers.notes
