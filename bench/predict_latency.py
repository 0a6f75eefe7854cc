"""Latency of training steps on a CPU, families left out one at a time: by layers, by layers alone, by trees.

Read from tests/recorded_cpu: `measured.csv` (a sweep of pruned networks), `layers.json` (what they are),
`microbench.csv` (single layers) and `environment.json`. What is chosen is chosen inside the training part of
each split: the pull of the factors, the smoothness of every class, methods and widths. Classes and terms were
settled before, on sweeps of the same families at other levels and batch sizes; these rows were scored once.

    python -m bench.predict_latency                        the table
    python -m bench.predict_latency --live NETWORK...      measure layers and networks now, and compare
    python -m bench.predict_latency --record SWEEP.db MICROBENCH.csv FOLDER     make the recorded files
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from detscope.predict.device.model import fit_device
from detscope.predict.layers.lists import read_layers, write_layers
from detscope.predict.layers.model import LayerModel, LayerTable, choose_layers, fit_layers
from detscope.predict.layers.times import read_layer_times
from detscope.predict.models.older import fit_trees
from detscope.predict.models.physical import choose_physical
from detscope.predict.samples import StepCase, StepSample, read_samples

RECORDED = Path(__file__).parents[1] / "tests" / "recorded_cpu"
WITH_STEPS, ALONE = 0.12, 0.20  # the errors that are promised
_LIVE_SECONDS, _LIVE_BATCHES, _LIVE_SIZE = 60.0, (4, 12), 128

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FamilyErrors:
    """Mean errors on a family that a method has not seen; `covered` of its rows by 90 % intervals."""

    family: str
    rows: int
    errors: Mapping[str, float]
    covered: float


def recorded(folder: Path = RECORDED) -> tuple[list[StepSample], LayerTable, list[Any]]:
    """Measured steps, the model of single layers, and the rows that it comes from."""
    samples = read_samples(folder / "measured.csv", read_layers(folder / "layers.json"))
    rows = read_layer_times(folder / "microbench.csv")
    return samples, fit_layers(rows), rows


def family_errors(
    samples: Sequence[StepSample], table: LayerTable, rows: Sequence[Any]
) -> list[FamilyErrors]:
    """Leave out one family after the other."""
    found = []
    for family in sorted({one.network for one in samples}):
        kept = [one for one in samples if one.network != family]
        asked = [one for one in samples if one.network == family]
        cases, truth = [one.case for one in asked], np.array([one.latency_ms for one in asked])
        whole = fit_device(kept, ["latency"], layer_times=rows).targets["latency"].estimate_cases(cases)
        by_method: dict[str, Array] = {
            "layers and steps": choose_layers(table, kept).predict(cases),
            "layers alone": LayerModel(table).predict(cases),
            "auto": whole.predicted,
            "steps alone": choose_physical(kept).predict(cases),
            "trees": fit_trees(kept, "latency_ms").predict(cases),
        }
        errors = {name: float(np.abs(value / truth - 1).mean()) for name, value in by_method.items()}
        covered = float(((whole.lower <= truth) & (truth <= whole.upper)).mean())
        found.append(FamilyErrors(family, len(asked), errors, covered))
    return found


def means(found: Sequence[FamilyErrors]) -> dict[str, float]:
    """Every family weighs the same."""
    return {name: float(np.mean([one.errors[name] for one in found])) for name in found[0].errors}


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table, or compare live, or record."""
    if arguments[:1] == ["--record"]:
        record(*map(Path, arguments[1:4]))
    elif arguments[:1] == ["--live"]:
        live(arguments[1:])
    else:
        table_of_families()


def table_of_families() -> None:
    """The errors of every method on every family."""
    if not (RECORDED / "measured.csv").is_file():
        print("no recorded sweep in tests/recorded_cpu: nothing to compare")
        return
    samples, table, rows = recorded()
    found = family_errors(samples, table, rows)
    names = list(found[0].errors)
    print(
        f"\nCPU latency of training steps, family left out: {len(samples)} steps, {len(rows)} layers; errors"
    )
    print(f"  {'':18}{'steps':>6}" + "".join(f"{name:>18}" for name in names) + f"{'in 90 %':>10}")
    for one in found:
        cells = "".join(f"{100 * one.errors[name]:16.1f} %" for name in names)
        print(f"  {one.family:18}{one.rows:6}{cells}{100 * one.covered:8.0f} %")
    mean = means(found)
    covered = 100 * float(np.mean([one.covered for one in found]))
    print(f"  {'mean':24}" + "".join(f"{100 * mean[name]:16.1f} %" for name in names) + f"{covered:8.0f} %")
    for name, bound in (("layers and steps", WITH_STEPS), ("layers alone", ALONE)):
        verdict = "ok" if mean[name] <= bound else "MISSED"
        print(f"  {name}: {100 * mean[name]:.1f} % (wanted: {100 * bound:.0f})  {verdict}")


def live(names: Sequence[str], seconds: float = _LIVE_SECONDS) -> None:
    """Measure layers now, then run networks that no recorded file holds; both by the same clock and hour."""
    from detscope.sessions.fit.fitting import run_microbench

    model = LayerModel(fit_layers(run_microbench("cpu", seconds, None, threads=1)))
    print(f"\nlayers measured for {seconds:.0f} s, then whole training steps at {_LIVE_SIZE} px, one thread")
    errors = []
    for name in names:
        network, graph = _loaded(name, _LIVE_SIZE)
        for batch in _LIVE_BATCHES:
            predicted, measured = float(model.predict([StepCase(graph, batch)])[0]), _step_ms(network, batch)
            errors.append(abs(predicted / measured - 1))
            print(
                f"  {name:22} batch {batch:3}: {predicted:8.1f} ms predicted, {measured:8.1f} ms measured,"
                f" {100 * (predicted / measured - 1):+.1f} %",
                flush=True,
            )
    print(f"  mean error {100 * float(np.mean(errors)):.1f} %")


def _loaded(name: str, image_size: int) -> tuple[Any, Any]:
    from detscope.predict.trace.network import trace_network
    from detscope.zoo.networks import load_network

    network = load_network(name, image_size=image_size)
    return network, trace_network(network).layer_graph


def _step_ms(network: Any, batch: int, steps: int = 7) -> float:
    import torch

    torch.set_num_threads(1)
    network.module.train()
    trained = [one for one in network.module.parameters() if one.requires_grad]
    update = torch.optim.SGD(trained, lr=1e-6, momentum=0.9, weight_decay=5e-4)
    data = network.random_batch(batch)
    times = []
    for _ in range(steps + 2):
        began = time.perf_counter()
        network.loss(data).backward()
        update.step()
        update.zero_grad(set_to_none=True)
        times.append(1e3 * (time.perf_counter() - began))
    return median(times[2:])


def record(store: Path, microbench: Path, folder: Path) -> None:
    """The recorded files out of a sweep's store and a microbench's rows."""
    from detscope.sweep.store import read_rows

    folder.mkdir(parents=True, exist_ok=True)
    rows = [row for row in read_rows(store) if row["kind"] == "ok" and row["stage"] == "training"]
    keys = {row["network"]: _family_and_level(row["network"]) for row in rows}
    sizes = {row["network"]: row["image_pixels"] for row in rows}
    graphs = {keys[name]: _loaded(str(store.parent / name), sizes[name])[1] for name in sorted(keys)}
    write_layers(folder / "layers.json", graphs)
    columns = ["net_name", "level", "bs", "image_size", "latency", "latency_low", "latency_high"]
    with (folder / "measured.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in sorted(rows, key=lambda one: (keys[one["network"]], one["batch_size"])):
            found = [row[name] for name in ("step_ms", "step_low_ms", "step_high_ms")]
            figures = [
                "" if value is None else f"{value:.3f}" for value in found
            ]  # too few steps: no interval
            writer.writerow([*keys[row["network"]], row["batch_size"], row["image_pixels"], *figures])
    (folder / "microbench.csv").write_bytes(microbench.read_bytes())
    facts = {
        "sweep": rows[0]["environment_facts"],
        "torch_threads": rows[0]["torch_threads"],
        "microbench": json.loads(microbench.with_suffix(".environment.json").read_text()),
    }
    (folder / "environment.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _family_and_level(name: str) -> tuple[str, int]:
    """Of a pruned network's folder: resnet18-random-p30-s0."""
    family, _, level, _ = Path(name).name.rsplit("-", 3)
    return family, int(level.removeprefix("p"))


if __name__ == "__main__":
    main(sys.argv[1:])
