"""`detscope fit`: from measured steps to a model of the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from detscope.cli.output import (
    JsonFlag,
    is_stdout,
    output_path,
    print_json,
    show_sections,
    stdout_kept_clean,
)
from detscope.errors import UsageError

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
WorkloadFlag = Annotated[
    str,
    typer.Option(
        "--workload", "--stage", metavar="WORK", help="training or inference; --stage is its old name."
    ),
]
WhereFlag = Annotated[
    str | None,
    typer.Option(
        "--where", metavar="LIST", help="Which rows: precision=fp32,threads=1; else the most frequent."
    ),
]


def fit(
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where the model goes (-: standard output).")
    ],
    files: FilesArgument = None,
    target: TargetFlag = "memory,latency",
    stage: WorkloadFlag = "training",
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
    import msgspec

    from detscope.analyze.fitting import FitResult
    from detscope.report.verbs.fitting import fit_sections
    from detscope.sessions.fit.fitting import FitRequest, run_fit

    if json and is_stdout(out):
        raise UsageError("--out - and --json exclude each other", "standard output can hold one of them")
    with output_path(out, ".model") as path:
        asked = FitRequest(
            files or [],
            path,
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
            found = msgspec.convert(run_fit(asked, told), FitResult)
    if json:
        print_json(found)
    else:
        show_sections(fit_sections(found), to_stderr=is_stdout(out))


@contextmanager
def told_meanwhile() -> Iterator[Callable[[str], None]]:
    """Words on what is being done, on a terminal's stderr; elsewhere nothing."""
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield lambda words: status.update(words.replace("[", r"\["))
