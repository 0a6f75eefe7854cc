"""`detscope tune`: try the advice and keep what helps."""

from __future__ import annotations

from typing import Annotated

import typer

from detscope.cli.flags import ConfigFlag, DataFlag, DeviceFlag, ModelArgument, OutFlag, OverridesFlag
from detscope.cli.output import JsonFlag, print_json, show_sections, stdout_kept_clean


def tune(
    model: ModelArgument = None,
    config: ConfigFlag = None,
    overrides: OverridesFlag = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="How long to try: 90s, 5m, 1h.")] = "5m",
    steps: Annotated[
        str | None, typer.Option(metavar="N", help="Measured steps of each try; else 20.")
    ] = None,
    data: DataFlag = None,
    device: DeviceFlag = None,
    out: OutFlag = None,
    json: JsonFlag = False,
) -> None:
    """Try the advice of a run, one change at a time, between runs of the base; write the best as a config."""
    from detscope.config.load import load_settings
    from detscope.extras import require_package
    from detscope.report.progress import make_progress
    from detscope.report.verbs.tuning import tuning_sections
    from detscope.sessions.trying.processes import parse_budget
    from detscope.sessions.tune import run_tuning

    seconds = parse_budget(budget)
    require_package("torch")  # of the processes: their failure would be a line in a log
    flags: dict[str, object] = {
        "model.name": model,
        "training.steps": steps or "20",
        "data.name": data,
        "training.device": device,
        "output.runs": out,
    }
    loaded = load_settings(config, overrides or (), flags)
    progress = make_progress(quiet=False)
    with stdout_kept_clean(True):
        try:
            result = run_tuning(loaded.settings, budget_s=seconds, progress=progress, notes=loaded.notes)
        finally:
            progress.finish()
    if json:
        print_json(result)
    else:
        show_sections(tuning_sections(result))
