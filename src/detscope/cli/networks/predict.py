"""`detscope predict`: what a network will cost before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detscope.cli.output import (
    JsonFlag,
    check_picture,
    is_stdout,
    output_path,
    print_json,
    show_sections,
    stdout_kept_clean,
)
from detscope.errors import UsageError


def predict(
    network: Annotated[
        str,
        typer.Argument(
            metavar="NETWORK",
            help="A model, network folder, file.py:factory, list of layers FILE.json:NAME; or a run.",
        ),
    ],
    device_model: Annotated[
        Path | None, typer.Option("--device-model", metavar="FILE", help="A model by `detscope fit`.")
    ] = None,
    batch_sizes: Annotated[
        str | None, typer.Option("--batch-sizes", metavar="LIST", help="Images per step; else 1,2,4,...,128.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", metavar="N", help="Pixels; else the network's own.")
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option("--memory-limit", metavar="SIZE", help="8GiB, 512MiB; else the device's.")
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option(
            "--workload",
            "--stage",
            metavar="WORK",
            help="training, the default, or inference; --stage is its old name.",
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option("--optimizer", metavar="NAME", help="sgd (with momentum), the default, or adam."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", metavar="FILE", help="Draw it: latency, memory, what fits; .png, .svg or -."
        ),
    ] = None,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write an offline HTML page; -: print it.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Latency and memory with 90 % intervals, what fits and which batch is best; no step is run.

    Of a run: its own network, predicted beside what was measured, and kept in the run for its report.
    """
    from detscope.analyze.prediction import read_prediction
    from detscope.sessions.predict.prediction import PredictRequest, find_named_run, run_predict

    check_picture(picture, as_json=json)
    if html == "-" and (json or is_stdout(picture)):
        raise UsageError("--html - and another output both want standard output", "give --html a file")
    asked = PredictRequest(network, device_model, batch_sizes, memory_limit, image_size, stage, optimizer)
    run = find_named_run(network)
    with stdout_kept_clean(json):
        if run is None:
            answer = run_predict(asked)
        else:
            from detscope.sessions.predict.runs import predict_run

            answer = predict_run(asked, run)
    found = read_prediction(answer)
    if picture is not None:
        import msgspec

        from detscope.report.verbs.prediction_charts import draw_prediction

        with output_path(picture, ".png") as path:
            draw_prediction(found, path)
        found = msgspec.structs.replace(found, picture=str(picture))
    if html is not None:
        from detscope.report.verbs.prediction_page import prediction_page
        from detscope.runs.atomic import write_text

        with output_path(Path(html), ".html") as path:
            write_text(path, prediction_page(found))
    if json:
        print_json(found)
        return
    from detscope.report.verbs.prediction import prediction_sections

    show_sections(prediction_sections(found), to_stderr=is_stdout(picture) or html == "-")
