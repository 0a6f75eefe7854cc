"""`detscope try` behind the command line: one change of a run's command, tried and judged."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path, PurePath

import msgspec

from detscope.analyze.compare.results import TOLERANCE
from detscope.analyze.compare.trying import Attempt, TriedFinding, TryResult
from detscope.analyze.step.beside import CodePlace
from detscope.analyze.summary import summarize
from detscope.errors import UsageError
from detscope.report.progress import Progress
from detscope.report.verbs.trying import try_body
from detscope.runs.atomic import write_text
from detscope.runs.reader import Run, load_run
from detscope.runs.standard_json import as_standard_json
from detscope.sessions.trying.commands import TriedCommand, check_change, find_command
from detscope.sessions.trying.copies import SIDES, Patch, Workplace, find_tree, patched_copies
from detscope.sessions.trying.processes import TriedSide, Turns, conclude, name_folder, take_turns

NEVER_CHECKED = (
    "weights, checkpoints and files that the command writes",
    "losses behind the fifth step",
    "boxes and scores of detections: runs hold their counts",
    "time before the first and behind the last step",
)


@dataclass(frozen=True)
class TryRequest:
    """What is changed, and how long it is tried."""

    run: Path
    patch: Path | None = None
    settings: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    finding: str | None = None
    seed: int | None = None
    steps: int | None = None
    rounds: int = 12
    budget_s: float = 300.0
    tolerance: float = TOLERANCE
    out: Path = Path("runs")


def run_try(request: TryRequest, progress: Progress) -> TryResult:
    """Try a change: both sides by turns, then the verdict; its folder keeps everything."""
    run = load_run(request.run)
    command = find_command(run)
    check_change(command, request.settings, request.environment)
    patch, finding = find_change(request, run)
    folder = name_folder(request.out, "try")
    begin = time.monotonic()
    with _workplaces(patch, command) as places:
        folder.mkdir(parents=True, exist_ok=True)
        base, changed = (
            _make_side(command, place, folder / name, request, changed=name == SIDES[1])
            for name, place in zip(SIDES, places, strict=True)
        )
        told = tuple(_tell_change(request, patch))
        progress.note(f"{shlex.join(base.command)}, with and without {', '.join(told)}")
        turns = Turns(request.rounds, request.budget_s)
        take_turns(base, [changed], turns, folder / "output.txt", progress, request.tolerance)
    attempt = conclude(base, changed, request.tolerance)
    if attempt.verdict == "undecided":
        attempt = msgspec.structs.replace(attempt, why=f"{attempt.why}; {_advise(attempt, request, base)}")
    result = TryResult(
        **msgspec.structs.asdict(attempt),
        run=str(run.folder),
        command=shlex.join(["detscope", command.verb, *command.words]),
        change=told,
        files=tuple(file.name for file in patch.files) if patch else (),
        patch=patch.text if patch else None,
        finding=finding,
        folder=str(folder),
        copies=", ".join(f"a copy of {source}" for source in places[1].copies) or None,
        rounds=request.rounds,
        budget_s=request.budget_s,
        spent_s=round(time.monotonic() - begin, 1),
        seed=request.seed,
        others_share=_read_others([*base.runs[-1:], *changed.runs[-1:]]),
        not_checked=NEVER_CHECKED,
    )
    write_text(folder / "try.json", json.dumps(as_standard_json(result), indent=2) + "\n")
    write_text(folder / "try.md", try_body(result))
    return result


def find_change(request: TryRequest, run: Run) -> tuple[Patch | None, TriedFinding | None]:
    """The patch, given or of the finding; and the finding that the change is about."""
    patch = Patch.of_file(request.patch) if request.patch else None
    if patch is None and request.finding is None:
        return None, None
    findings = summarize(run).findings
    if request.finding is None:
        ranked = (
            [(match_place(place, patch), one) for one in findings for place in one.where] if patch else []
        )
        closeness, nearest = max(ranked, key=lambda pair: pair[0], default=(0, None))  # of equals the first
        about = nearest if closeness else None
    else:
        about = next((one for one in findings if one.id == request.finding), None)
        if about is None:
            raise UsageError(
                f"the run has no finding {request.finding!r}", f"list them: detscope why {run.folder.name}"
            )
    if about is None:
        return patch, None
    if patch is None and about.diff:
        patch = Patch.of_text(about.diff, f"{about.id}.diff")
    if patch is None and not (request.settings or request.environment):
        raise UsageError(f"{about.id} has no diff of its own", "write the change and give it: --patch FILE")
    where = tuple(f"{place.file}:{place.line} {place.function}" for place in about.where)
    return patch, TriedFinding(id=about.id, claim=about.claim, where=where)


def match_place(place: CodePlace, patch: Patch) -> int:
    """2: the patch changes near the line, 1: in its file. A script is named without folders."""
    named = PurePath(place.file).parts
    hunks = [one.hunks for one in patch.files if PurePath(one.name).parts[-len(named) :] == named]
    near = any(one.start < place.line <= one.start + len(one.before) for file in hunks for one in file)
    return 2 if near else int(bool(hunks))


def _tell_change(request: TryRequest, patch: Patch | None) -> Iterator[str]:
    if patch is not None:
        yield f"the patch {patch.name} ({', '.join(file.name for file in patch.files)})"
    yield from (f"--set {word}" for word in request.settings)
    yield from (f"--env {word}" for word in request.environment)


@contextmanager
def _workplaces(patch: Patch | None, command: TriedCommand) -> Iterator[tuple[Workplace, Workplace]]:
    if patch is None:
        yield Workplace(), Workplace()
        return
    begins = [command.folder, *([command.code.parent] if command.code else [])]
    with patched_copies(patch, find_tree(command.folder, command.code), begins) as places:
        yield places


def _make_side(
    command: TriedCommand, place: Workplace, out: Path, request: TryRequest, *, changed: bool
) -> TriedSide:
    environment = dict(os.environ)
    environment |= {"PYTHONHASHSEED": str(request.seed)} if request.seed is not None else {}
    if changed:
        environment |= dict(word.split("=", 1) for word in request.environment)
    if place.copies:
        environment["PYTHONPATH"] = place.python_path(environment.get("PYTHONPATH", ""))
    settings = request.settings if changed else ()
    words = command.make_words(place, out, settings, request.seed, request.steps)
    return TriedSide(words, out, place.place(command.folder), environment)


def _advise(attempt: Attempt, request: TryRequest, base: TriedSide) -> str:
    """What would decide it."""
    results = attempt.results
    if results is not None and results.verdict == "cannot tell":
        if results.base_difference is None:
            return "--tolerance inf tries the time alone"
        if request.seed is None:
            return "--seed 0 makes a script without seeds repeatable"
        return "a --tolerance above that, or inf, tries it anyway"
    pairs = attempt.time.pairs if attempt.time else 0
    if pairs >= request.rounds:
        return f"more pairs may decide: --rounds {2 * max(request.rounds, 6)}"
    return f"the time is used up, a run takes {base.longest_s:.0f} s: a larger --budget, or fewer --steps"


def _read_others(runs: Sequence[Run]) -> float | None:
    from detscope.analyze.compare.figures import read_others

    found = [share for run in runs if (share := read_others(run, summarize(run))) is not None]
    return max(found, default=None)


def check_request(request: TryRequest) -> None:
    """Refuse what asks for nothing."""
    if not (request.patch or request.settings or request.environment or request.finding):
        raise UsageError("nothing to try", "give --patch FILE, --set KEY=VALUE, --env K=V or --finding ID")
    if request.rounds < 2:
        raise UsageError(f"--rounds {request.rounds}: two pairs are the least", "the usual is 12")
    if request.steps is not None and request.steps < 1:
        raise UsageError(f"--steps {request.steps}: one is the least", "leave it out for those of the run")
    if request.seed is not None and not 0 <= request.seed < 2**32:
        raise UsageError(f"--seed {request.seed} is none", "a whole number from 0 to 4294967295")
    if not 0 < request.budget_s < inf:
        raise UsageError("--budget leaves no time, or has no end", "for example --budget 5m")
    if not request.tolerance >= 0:
        raise UsageError(f"--tolerance {request.tolerance} is no share", "for example 1e-4, or inf")
