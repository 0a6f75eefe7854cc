"""`detscope score`: how wrong a predictor is on what it has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from detscope.cli.fit import (
    FilesArgument,
    LayerTimesFlag,
    StageFlag,
    TargetFlag,
    WhereFlag,
    print_rows_used,
    told_meanwhile,
)
from detscope.cli.output import JsonFlag, print_json, stdout_kept_clean, table_console

_COLUMNS = ("mean", "median", "p90", "within_10_percent", "coverage", "width")


def score(
    files: FilesArgument = None,
    target: TargetFlag = "memory,latency",
    stage: StageFlag = "training",
    method: Annotated[
        str, typer.Option("--method", metavar="LIST", help="auto, trees, physical, hybrid.")
    ] = "auto,trees",
    protocol: Annotated[
        str,
        typer.Option(
            "--protocol",
            metavar="LIST",
            help="random-rows, unseen-levels, unseen-networks, unseen-families, unseen-device.",
        ),
    ] = "unseen-levels,unseen-networks",
    device: Annotated[str | None, typer.Option("--device", metavar="DEVICE", help="Whose rows.")] = None,
    where: WhereFlag = None,
    layer_times: LayerTimesFlag = None,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="Predicted against measured; .png or .svg."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Errors, intervals and out-of-memory decisions, with the noise of the data beside them."""
    from detscope.sessions.fit.score import ScoreRequest, run_score

    if picture is not None:
        from detscope.report.canvas import check_ending

        check_ending(picture)
    asked = ScoreRequest(
        files or [],
        target,
        stage,
        method,
        protocol,
        device,
        where,
        layer_times,
        points=picture is not None,
    )
    with stdout_kept_clean(json), told_meanwhile() as told:
        found = run_score(asked, told)
    if picture is not None:
        from detscope.report.predict_pictures import draw_scores

        found["picture"] = str(draw_scores(found.pop("points"), picture))
    if json:
        print_json(found)
        return
    _print(found)


def _print(found: dict[str, Any]) -> None:
    from rich.table import Table

    console = table_console()
    print_rows_used(found, console)
    table = Table()
    for name in ("target", "protocol", "method"):
        table.add_column(name, no_wrap=True)
    for name in ("rows", "MAPE %", "median %", "p90 %", "in 10 %", "held %", "width %"):
        table.add_column(name, justify="right")
    for row in found["scores"]:
        shares = [f"{100 * row[name]:.1f}" for name in _COLUMNS]
        table.add_row(row["target"], row["protocol"], row["method"], str(row["rows"]), *shares)
    console.print(table)
    console.print(
        "MAPE: mean error, every network weighing the same; in 10 %: share of rows off by less; "
        "held: share inside the 90 % intervals; width: of those"
    )
    for name, noise in found["noise_floor"].items():
        console.print(f"noise of the data, {name}: {_noise(noise, found['measured_interval'][name])}")
    if found["decisions"]:
        made = found["decisions"]
        console.print(
            f"fits or not: {100 * made['right']:.1f} % right of {made['rows']}; {made['too_close']} too "
            f"close to call, plain answers {100 * made['plain_right']:.1f} % right, "
            f"{made['false_fits']} said to fit and did not"
        )
    if found.get("picture"):
        console.print(f"picture: {found['picture']}", markup=False)


def _noise(between: float | None, inside: float | None) -> str:
    words = []
    if between is not None:
        words.append(f"{100 * between:.1f} % between measurements of the same case")
    if inside is not None:
        words.append(f"medians are known to {100 * inside:.1f} % within a measurement")
    return "; ".join(words) or "cannot tell: nothing was measured twice"
