"""Fitting device models: from whole steps, from single layers, or from an old device's model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.errors import InputError, UsageError
from detscope.machine.devices import take_device
from detscope.machine.facts import gather_facts
from detscope.predict.device.file import load_model, save_model
from detscope.predict.device.model import FEWEST, STAGES, DeviceModel, fit_device, transfer_device
from detscope.predict.layers.times import LayerTime, read_layer_times, write_layer_times
from detscope.predict.models.choice import WIDEST
from detscope.predict.models.methods import METHODS, TARGETS
from detscope.predict.samples import StepSample, keep_measured
from detscope.runs.atomic import write_text
from detscope.sessions.fit.sources import MeasuredSamples, parse_where, read_measured

if TYPE_CHECKING:
    from detscope.predict.microbench.run import Microbench

FEWEST_ROWS = 9  # of fewer, no share says what nine in ten are
MICROBENCH_FILE = "microbench.csv"
_FACTS = ".environment.json"  # beside microbench.csv: microbench.environment.json
Told = Callable[[str], None]  # what is being done, in words


@dataclass(frozen=True)
class FitRequest:
    """What the user asked for."""

    files: Sequence[Path]
    out: Path
    target: str = "memory,latency"
    stage: str = "training"
    method: str = "auto"
    device: str | None = None
    where: str | None = None
    microbench: bool = False
    microbench_seconds: float = 180.0
    layer_times: Path | None = None
    transfer: Path | None = None


def choose_values(text: str, known: Sequence[str], flag: str) -> list[str]:
    """The comma-separated values of a flag, each of them known."""
    values = [value.strip() for value in text.split(",") if value.strip()]
    for value in values or [text]:
        if value not in known:
            raise UsageError(f"{flag}: no {value!r}", f"there are: {', '.join(known)}")
    return list(dict.fromkeys(values))


def run_fit(request: FitRequest, told: Told = lambda _: None) -> dict[str, Any]:
    """Fit, write, and tell what was fitted and how wrong it was on what it had not seen."""
    targets = choose_values(request.target, list(TARGETS), "--target")
    (stage,) = choose_values(request.stage, STAGES, "--stage")[:1]
    (method,) = choose_values(request.method, METHODS, "--method")[:1]
    where = parse_where(request.where, request.device)
    _check_request(request)
    source = None if request.transfer is None else load_model(request.transfer)
    if source is not None and source.stage != stage:
        raise UsageError(
            f"{request.transfer} was fitted for {source.stage}, asked was {stage}", f"--stage {source.stage}"
        )
    measured = MeasuredSamples()
    if request.files:
        measured = read_measured(request.files, stage=stage, where=where, told=told)
    times, kept_in = _find_layer_times(request, measured.kept, told)
    told("fitting")
    if source is not None:
        enough = [one for one in targets if len(keep_measured(measured.samples, TARGETS[one])) >= FEWEST]
        # without those that hardly any sample has; where all are so, all, for the error to say it
        model = transfer_device(source, measured.samples, enough or targets)
    else:
        targets, notes = _select_fittable(targets, measured.samples, stage, method, layers=bool(times))
        model = fit_device(measured.samples, targets, stage=stage, method=method, layer_times=times)
        model = replace(model, notes=(*model.notes, *notes, *_unsure_notes(model)))
    save_model(model, request.out)
    return describe_fit(model, request.out, measured) | {"layer_times": kept_in and str(kept_in)}


def _check_request(request: FitRequest) -> None:
    if not request.out.parent.is_dir():  # before minutes of measuring
        raise UsageError(f"--out: no folder {request.out.parent}", "make it first, or choose another place")
    if request.transfer is not None and (request.microbench or request.layer_times):
        raise UsageError("--transfer and --microbench are two ways to begin", "choose one of them")
    if request.microbench and request.layer_times:
        raise UsageError("--microbench measures what --layer-times reads", "choose one of them")
    if request.transfer is not None and not request.files:
        raise UsageError("--transfer needs a few steps of the new device", "name a store, runs or a CSV")
    if not request.files and not request.microbench and request.layer_times is None:
        raise UsageError("nothing to fit from", "name stores, runs or CSVs, or use --microbench")


def _find_layer_times(
    request: FitRequest, conditions: Mapping[str, str], told: Told
) -> tuple[list[LayerTime] | None, Path | None]:
    """Times of single layers and where they are kept; measured as the steps beside them were."""
    if request.layer_times is not None:
        return read_layer_times(request.layer_times), request.layer_times
    if not request.microbench:
        return None, None
    place = request.out.with_name(f"{request.out.stem}.{MICROBENCH_FILE}")
    device = (request.device or conditions.get("device") or "auto").rpartition("/")[2]
    threads = conditions.get("threads", "")
    times = run_microbench(
        device,
        request.microbench_seconds,
        place,
        lambda share, words: told(f"microbench, {100 * share:.0f} %: {words}"),
        threads=int(threads) if threads.isdigit() else None,
    )
    return times, place


def _select_fittable(
    targets: Sequence[str], samples: Sequence[StepSample], stage: str, method: str, *, layers: bool
) -> tuple[list[str], list[str]]:
    """The targets of which enough was measured, and a note on each of the others."""
    kept, notes = [], []
    for target in targets:
        count = len(keep_measured(samples, TARGETS[target]))
        if target == "latency" and layers:
            kept.append(target)
        elif target == "memory" and not samples:
            kept.append(target)  # of layers alone: the model itself says that it is simulated
        elif target == "memory" and stage == "inference" and method != "trees" and len(targets) > 1:
            notes.append("memory: of inference only --method trees is fitted; left out")
        elif count >= FEWEST_ROWS:
            kept.append(target)
        else:
            notes.append(f"{target}: {count} rows have it, {FEWEST_ROWS} are the fewest for a 90 % interval")
    if not kept:
        raise InputError(
            "; ".join(notes), "measure more batch sizes or networks, or start from an old device: --transfer"
        )
    return kept, notes


def _unsure_notes(model: DeviceModel) -> list[str]:
    notes = []
    if len(model.networks) == 1:
        notes.append(f"one network only ({model.networks[0]}): nothing is known about any other")
    elif 1 < len(model.networks) < FEWEST_ROWS:
        notes.append(
            f"intervals of unseen networks rest on {len(model.networks)} networks:"
            f" with fewer than {FEWEST_ROWS}, nine in ten is likely and not certain"
        )
    for name, target in model.targets.items():
        if target.far_width >= WIDEST:
            notes.append(f"{name}: too little was measured to tell how wrong unseen networks are")
    return notes


def describe_fit(model: DeviceModel, path: Path, measured: MeasuredSamples) -> dict[str, Any]:
    """A model in figures."""
    return {
        "model": str(path),
        "stage": model.stage,
        "rows": model.rows,
        "layer_rows": model.layer_rows,
        "networks": list(model.networks),
        "fingerprint": model.fingerprint,
        "limit_bytes": model.limit_bytes,
        "conditions": measured.kept,
        "left_out": measured.left_out,
        "notes": [*measured.notes, *model.notes],
        "targets": {
            name: {
                "near": target.near_name,
                "far": target.far_name,
                "beside_width": target.beside_width,
                "near_width": target.near_width,
                "far_width": target.far_width,
                "left_out_errors": target.errors,
            }
            for name, target in model.targets.items()
        },
    }


def run_microbench(
    device: str,
    seconds: float,
    out_csv: Path | None,
    progress: Callable[[float, str], None] | None = None,
    *,
    threads: int | None = None,
) -> list[LayerTime]:
    """Measure layers for so many seconds; rows and their environment are kept where `out_csv` says.

    `progress` is told the share that is done and how much was measured. `threads` are torch's (None: as is).
    """
    from detscope.predict.microbench.run import measure_layers

    if not seconds > 0:
        raise UsageError(f"--microbench-seconds {seconds:g}: no time to measure in", "180 is usual")
    if threads is not None and threads < 1:
        raise UsageError(f"{threads} threads", "1 or more")
    place = take_device(device)
    with _use_threads(threads) as used:
        found = measure_layers(place, seconds, progress=progress)
    if not found.rows:
        raise UsageError(f"--microbench-seconds {seconds:g}: not one layer was measured", "180 is usual")
    if out_csv is not None:
        out_csv.parent.mkdir(parents=True, exist_ok=True)
        write_layer_times(out_csv, found.rows)
        write_text(
            out_csv.with_suffix(_FACTS), json.dumps(describe_microbench(found, place, used), indent=1) + "\n"
        )
    return list(found.rows)


def describe_microbench(found: Microbench, device: str, threads: int) -> dict[str, Any]:
    """What the rows depend on, and how much the machine's speed drifted meanwhile."""
    drift = found.drift
    return {
        "device": device,
        "torch_threads": threads,
        "seconds": round(found.seconds, 1),
        "rows": len(found.rows),
        "finished_rounds": found.rounds,
        "reference_convolution_ms": [round(value, 4) for value in drift.compute_ms],
        "reference_addition_ms": [round(value, 4) for value in drift.move_ms],
        "slowest_reference_over_fastest": round(drift.largest_ratio, 3),
        "environment": gather_facts(),
    }


@contextmanager
def _use_threads(wanted: int | None) -> Iterator[int]:
    import torch

    before = torch.get_num_threads()
    if wanted is not None:
        torch.set_num_threads(wanted)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
