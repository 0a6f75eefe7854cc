"""`detscope score`: how wrong a predictor is on what it has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detscope.cli.networks.fit import (
    FilesArgument,
    LayerTimesFlag,
    TargetFlag,
    WhereFlag,
    WorkloadFlag,
    told_meanwhile,
)
from detscope.cli.output import (
    JsonFlag,
    check_picture,
    is_stdout,
    output_path,
    print_json,
    show_sections,
    stdout_kept_clean,
)


def score(
    files: FilesArgument = None,
    target: TargetFlag = "memory,latency",
    stage: WorkloadFlag = "training",
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
        typer.Option("--picture", metavar="FILE", help="Predicted against measured; .png, .svg or -."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Errors, intervals and out-of-memory decisions, with the noise of the data beside them."""
    import msgspec

    from detscope.analyze.fitting import ScoreResult
    from detscope.analyze.prediction import PredictionPoint
    from detscope.report.verbs.fitting import score_sections
    from detscope.sessions.fit.score import ScoreRequest, run_score

    check_picture(picture, as_json=json)
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
        scored = run_score(asked, told)
    found = msgspec.convert(scored, ScoreResult)
    if picture is not None:
        from detscope.report.verbs.prediction_charts import draw_scores

        points = msgspec.convert(scored["points"], list[PredictionPoint])
        with output_path(picture, ".png") as path:
            draw_scores(points, path)
        found = msgspec.structs.replace(found, picture=str(picture))
    if json:
        print_json(found)
    else:
        show_sections(score_sections(found), to_stderr=is_stdout(picture))
