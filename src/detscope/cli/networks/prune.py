"""`detscope prune`: networks of many sizes from a few models, each a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detscope.cli.output import JsonFlag, print_json, show_sections, stdout_kept_clean
from detscope.errors import TrialsFailedError, UsageError

if TYPE_CHECKING:
    from detscope.analyze.fitting import PruneResult

MODES = ("random", "l1", "weighted")
_MOST_LEVELS = 1000
_LEVELS_FORM = "percent of the parameters, as in 0,30,50 or 0,5,...,90"


def prune(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Detectors, classifiers of torchvision, timm/NAME."),
    ],
    levels: Annotated[
        str, typer.Option(metavar="LEVELS", help="Percent of the parameters removed: 0,30,50 or 0,5,...,90.")
    ] = "0,30,50,70,90",
    mode: Annotated[
        str, typer.Option(metavar="MODE", help="random, l1 (weakest channels) or weighted (by depth).")
    ] = "random",
    seed: Annotated[int, typer.Option(metavar="N", help="Of the weights and of the choice.")] = 0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of network folders.")] = Path("networks"),
    force: Annotated[bool, typer.Option("--force", help="Replace network folders that are there.")] = False,
    json: JsonFlag = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Remove channels from networks: every model at every level, each a folder that loads without code."""
    chosen = parse_levels(levels)
    if mode not in MODES:
        raise UsageError(f"--mode {mode}: no such mode", f"use {', '.join(MODES)}")
    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed {seed}: expected 0 to 2**63 - 1", "for example --seed 0")
    import msgspec

    from detscope.analyze.fitting import PruneResult
    from detscope.report.progress import make_progress
    from detscope.report.verbs.fitting import prune_sections

    progress = make_progress(quiet=quiet)
    with stdout_kept_clean(json):
        from detscope.sessions.prune import PruneRequest, run_prune

        try:
            request = PruneRequest(models, chosen, mode, seed, out, force)  # type: ignore[arg-type]
            result = msgspec.convert(run_prune(request, progress), PruneResult)
        finally:
            progress.finish()
    if json:
        print_json(result)
    else:
        show_sections(prune_sections(result))
    _check_all_done(result, len(models))


def parse_levels(text: str) -> list[float]:
    """`0,5,...,90` or a plain list; each once, in ascending order."""
    pieces = [piece.strip() for piece in text.split(",")]
    levels: list[float] = []
    for index, piece in enumerate(pieces):
        if piece in ("...", "…"):
            levels += _fill_levels(levels, pieces[index + 1 :], text)
        else:
            levels.append(_parse_level(piece, text))
    return sorted(set(levels))


def _fill_levels(before: Sequence[float], after: Sequence[str], text: str) -> list[float]:
    if len(before) < 2 or not after:
        raise UsageError(f"--levels {text}: ... stands between two levels and a last one", _LEVELS_FORM)
    step, last = before[-1] - before[-2], _parse_level(after[0], text)
    if step <= 0 or last < before[-1]:
        raise UsageError(f"--levels {text}: ... needs ascending levels", _LEVELS_FORM)
    count = round((last - before[-1]) / step)
    if count > _MOST_LEVELS:
        raise UsageError(f"--levels {text}: {count} levels", f"at most {_MOST_LEVELS}, please")
    return [round(before[-1] + step * number, 6) for number in range(1, count)]


def _parse_level(piece: str, text: str) -> float:
    try:
        level = float(piece)
    except ValueError:
        raise UsageError(f"--levels {text}: {piece!r} is no number", f"expected {_LEVELS_FORM}") from None
    if not 0 <= level < 100:
        raise UsageError(f"--levels {text}: {piece} is not from 0 to below 100", f"expected {_LEVELS_FORM}")
    return level


def _check_all_done(result: PruneResult, models: int) -> None:
    if result.failed:
        names = ", ".join(one.model for one in result.failed)
        raise TrialsFailedError(
            f"{len(result.failed)} of {models} models could not be pruned: {names}", result.failed[0].hint
        )
