"""`detscope fit`: from measured steps to a model of the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import exp
from pathlib import Path
from typing import Annotated, Any

import typer

from detscope.cli.output import JsonFlag, print_json, stdout_kept_clean, table_console

FilesArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE...",
        help="Sweep stores, run folders, folders of runs, CSVs (a layers.json beside them).",
    ),
]
LayerTimesFlag = Annotated[
    Path | None, typer.Option("--layer-times", metavar="CSV", help="What a --microbench kept.")
]
TargetFlag = Annotated[str, typer.Option("--target", metavar="LIST", help="memory, latency or both.")]
StageFlag = Annotated[str, typer.Option("--stage", metavar="STAGE", help="training or inference.")]
WhereFlag = Annotated[
    str | None,
    typer.Option(
        "--where", metavar="LIST", help="Which rows: precision=fp32,threads=1; else the most frequent."
    ),
]


def fit(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the model goes.")],
    files: FilesArgument = None,
    target: TargetFlag = "memory,latency",
    stage: StageFlag = "training",
    method: Annotated[
        str, typer.Option("--method", metavar="METHOD", help="auto, trees, physical or hybrid.")
    ] = "auto",
    device: Annotated[
        str | None, typer.Option("--device", metavar="DEVICE", help="Whose rows; what --microbench measures.")
    ] = None,
    where: WhereFlag = None,
    microbench: Annotated[
        bool, typer.Option("--microbench", help="Measure single layers here; FILEs may be left out.")
    ] = False,
    microbench_seconds: Annotated[
        float, typer.Option("--microbench-seconds", metavar="S", help="For how long.")
    ] = 180.0,
    layer_times: LayerTimesFlag = None,
    transfer: Annotated[
        Path | None,
        typer.Option("--transfer", metavar="OLD.model", help="Another device's model; FILEs: 3 to 10 rows."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Fit a model of a device; methods are chosen on networks and levels that were left out."""
    from detscope.sessions.fit.fitting import FitRequest, run_fit

    asked = FitRequest(
        files or [],
        out,
        target,
        stage,
        method,
        device,
        where,
        microbench,
        microbench_seconds,
        layer_times,
        transfer,
    )
    with stdout_kept_clean(json), told_meanwhile() as told:
        found = run_fit(asked, told)
    if json:
        print_json(found)
        return
    _print(found)


@contextmanager
def told_meanwhile() -> Iterator[Callable[[str], None]]:
    """Words on what is being done, on a terminal's stderr; elsewhere nothing."""
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield lambda words: status.update(words.replace("[", r"\["))


def _print(found: dict[str, Any]) -> None:
    console = table_console()
    layers = f" and {found['layer_rows']} single layers" if found["layer_rows"] else ""
    console.print(
        f"{found['rows']} rows of {len(found['networks'])} networks{layers}, data {found['fingerprint']}",
        markup=False,
    )
    print_rows_used(found, console)
    for name, part in found["targets"].items():
        errors_follow = "; mean errors left out:" if part["left_out_errors"] else ""
        console.print(
            f"{name}: {part['near']} for seen networks, {part['far']} for others{errors_follow}", markup=False
        )
        for situation, errors in part["left_out_errors"].items():
            words = ", ".join(f"{method} {100 * error:.1f} %" for method, error in errors.items())
            console.print(f"  {situation}: {words}", markup=False)
        console.print(f"  90 % intervals: {_widths(part)}", markup=False)
    if found["layer_times"]:
        console.print(f"single layers: {found['layer_times']} (--layer-times uses them again)", markup=False)
    console.print(f"model: {found['model']}", markup=False)
    console.print(f"next: detscope predict NETWORK --device-model {found['model']}", markup=False)


def print_rows_used(found: dict[str, Any], console: Any) -> None:
    """Under which conditions rows were measured, which were left out, and what else is to be known."""
    if found["conditions"]:
        words = ", ".join(f"{name} {value}" for name, value in found["conditions"].items())
        console.print(f"rows with {words}", markup=False)
    for why, rows in found["left_out"].items():
        console.print(f"left out: {rows} {'row' if rows == 1 else 'rows'}: {why}", markup=False)
    for note in found["notes"]:
        console.print(f"note: {note}", markup=False)


def _widths(part: Mapping[str, Any]) -> str:
    """Half of an interval is a factor: up to so many times as much, or as little."""
    beside = part["near_width"] if part["beside_width"] is None else part["beside_width"]
    near, far = (f"{exp(part[name]):.2f}" for name in ("near_width", "far_width"))
    return f"within a factor of {exp(beside):.2f} to {near} for seen networks, {far} for others"
