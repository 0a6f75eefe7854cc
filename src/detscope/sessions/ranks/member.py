"""One rank of `detscope train --ranks N`; torchrun starts `-m detscope.sessions.ranks.member FOLDER`."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

from detscope.errors import DetscopeError
from detscope.faults import error_text
from detscope.sessions.ranks.exchange import RankPlace, rank_place

_DEATH_SIGNAL = 1  # prctl's number for "tell me when my parent dies"


def run_member(folder: Path) -> NoReturn:
    """Train as one of the ranks; how it ended is left in the folder for the process that started torchrun."""

    place = rank_place()
    if place is None:
        raise SystemExit("this module is started by torchrun, not by hand")
    _die_with_parent()
    os.dup2(2, 1)  # standard output belongs to the figures, which another process prints
    if not place.leads_ranks:
        _speak_into(folder / f"rank-{place.rank}.log")
    _keep_asides(folder / f"rank-{place.rank}.log")
    _leave_word(folder, place.rank, "started", {"pid": os.getpid()})
    try:
        run = _train_rank(folder, place)
    except BaseException as error:
        _leave_word(folder, place.rank, "error", _describe_error(error))
        _end_process(getattr(error, "exit_code", 1) if isinstance(error, DetscopeError) else 1)
    _leave_word(folder, place.rank, "ended", {"run": str(run.absolute())})
    _end_process(0)


def _end_process(exit_code: int) -> NoReturn:
    """Leave without destructors.

    In them a process group may wait for an end that is gone, and one of its threads that lets go of a tensor
    while Python ends takes the process down (pytorch issue 190489).
    """
    sys.stderr.flush()
    os._exit(exit_code)


def _train_rank(folder: Path, place: RankPlace) -> Path:
    from detscope.config.load import load_settings
    from detscope.report.progress import make_progress
    from detscope.sessions.ranks.team import join_team
    from detscope.sessions.train.training import run_training

    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    settings = load_settings(folder / "config.toml", (), {}).settings
    if not place.leads_ranks:
        settings = settings.with_section("output", runs=str(folder / f"rank-{place.rank}"))
    progress = make_progress(quiet=about["quiet"] or not place.leads_ranks)
    try:
        team = join_team(settings, place)
        team.tell_run = lambda run: _leave_word(folder, place.rank, "run", {"run": str(run.absolute())})
        run = run_training(settings, progress=progress, notes=about["notes"], team=team)
        team.leave_group()
    finally:
        progress.finish()
    return run


def _describe_error(error: BaseException) -> dict[str, Any]:
    known = isinstance(error, DetscopeError)
    words = " ".join(error_text(error).split())
    return {
        "kind": type(error).__name__,
        "message": error.message if known else words[:500],  # type: ignore[attr-defined]
        "hint": error.hint if known else "",  # type: ignore[attr-defined]
        "exit_code": error.exit_code if known else 1,  # type: ignore[attr-defined]
        "known": known,
        "traceback": "".join(traceback.format_exception(error)),
    }


def _leave_word(folder: Path, rank: int, what: str, content: dict[str, Any]) -> None:
    """Write a small file that is whole or not there."""
    path = folder / f"{what}-{rank}.json"
    aside = path.with_suffix(".part")
    with contextlib.suppress(FileNotFoundError):  # the folder goes when nobody waits for it any more
        aside.write_text(json.dumps(content), encoding="utf-8")
        aside.replace(path)


def _speak_into(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)


def _keep_asides(log: Path) -> None:
    """What destructors and threads say of a rank that ends goes to its log: why it ended is told elsewhere.

    When a rank dies, the workers of the others may be ended before them, and torch's handler of that raises
    wherever the rank is, also where nobody can catch it.
    """

    def keep_words(words: object) -> None:
        with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
            file.write(f"{words}\n")

    sys.unraisablehook = lambda told: keep_words(
        f"{told.err_msg or 'ignored'} {told.object!r}: {told.exc_value!r}"
    )
    threading.excepthook = lambda told: keep_words(f"in a thread: {told.exc_value!r}")


def _die_with_parent() -> None:
    """A torchrun that is killed cannot end its ranks: on Linux the system does."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


if __name__ == "__main__":
    run_member(Path(sys.argv[1]))
