"""A change that was tried: on a screen, and as the body of a pull request."""

from __future__ import annotations

from pathlib import PurePath

from detscope.analyze.compare.results import ResultCheck
from detscope.analyze.compare.sides import LARGEST
from detscope.analyze.compare.trying import DECISION_RISK, LEAST_GAIN, LEAST_PAIRS, TriedTime, TryResult
from detscope.report.figures import number, signed_interval, signed_percent
from detscope.report.model import Block, Column, Fact, Facts, Notes, Section, Table, Tone
from detscope.report.render.markdown import name_cell, sentence

_TONES: dict[str, Tone] = {"accept": "good", "reject": "bad", "undecided": "warn"}


def try_sections(result: TryResult) -> list[Section]:
    """The verdict, both sides, what was compared and what was not."""
    facts = [
        Fact("verdict", f"{result.verdict}: {result.why}", _TONES[result.verdict], stays=True),
        Fact("change", ", ".join(result.change)),
        Fact("command", result.command),
    ]
    if result.results is not None:
        facts.append(Fact("results", tell_results(result.results)))
    facts += [Fact("measured", _tell_measured(result)), Fact("kept in", result.folder, stays=True)]
    blocks: list[Block] = [Facts(facts)]
    if result.time is not None:
        columns = [
            Column("", "text"),
            Column("without", "ms"),
            Column("with", "ms"),
            Column("gain", "change"),
        ]
        columns += [Column("95 % interval"), Column("pairs", "count"), Column("steps", "text")]
        row = [f"ms per {result.time.per}", *_time_cells(result.time)]
        blocks.append(Table("tried", "Mean of the measured steps", columns, [row], brief_rows=1))
    blocks.append(Notes([f"not checked: {text}" for text in result.not_checked]))
    return [Section("try", "Try", f"{result.verdict}: {result.why}", "", blocks, brief_title=False)]


def _time_cells(time: TriedTime) -> list[str | float | int | None]:
    steps = f"{time.steps[0]} and {time.steps[1]}"
    return [time.before, time.after, time.gain, _tell_interval(time), time.pairs, steps]


def _tell_interval(time: TriedTime) -> str:
    """Of few pairs the interval may reach beyond all sense."""
    if time.gain_ci95 is None or time.gain_ci95[0] < -LARGEST:
        return "more pairs are needed"
    return signed_interval(time.gain_ci95)


def tell_results(check: ResultCheck) -> str:
    """Whether results are equal, by what, and how far they differ."""
    if check.verdict in ("cannot tell", "not checked"):
        return f"{check.verdict}: {check.why}"
    worst = check.difference
    words = f"{check.verdict} within {check.tolerance:g}: {'; '.join(check.compared)}"
    if worst is None or worst.share == 0:
        return f"{words}; to the last digit"
    size = "" if worst.share is None else f" by {worst.share:.1e}"
    own = check.base_difference.share if check.base_difference else None
    alone = "" if own is None else f"; the base from itself by {own:.1e}"
    return f"{words}; largest difference{size} ({worst.words}){alone}"


def _tell_measured(result: TryResult) -> str:
    pairs = result.time.pairs if result.time else 0
    words = f"{pairs} of at most {result.rounds} pairs of fresh processes, by turns, {result.spent_s:.0f} s"
    if result.others_share is not None and result.others_share >= 0.05:
        words += f"; other processes used {result.others_share:.0%} of the cores"
    return words


def try_body(result: TryResult) -> str:
    """Markdown for a pull request: cause, place, before and after, how it was measured, what was not."""
    time, finding = result.time, result.finding
    head = f"{result.verdict}: {result.why}"
    lines = [f"### {sentence(head[:1].upper() + head[1:])}", ""]
    cause = f"{sentence(finding.claim)} ({name_cell(finding.id)})" if finding else "no finding was named"
    places = finding.where if finding and finding.where else result.files
    lines += [f"**Cause.** {cause}", ""]
    lines += [f"**Place.** {', '.join(map(name_cell, places)) or 'no file: settings alone'}", ""]
    lines += [f"**Change.** {', '.join(map(name_cell, result.change))}", ""]
    if time is not None:
        lines += ["| | before | after | gain | 95 % interval |", "|---|---:|---:|---:|---|"]
        figures = [number(time.before), number(time.after), signed_percent(time.gain), _tell_interval(time)]
        lines += [f"| ms per {time.per} | {' | '.join(figures)} |", ""]
    if result.results is not None:
        lines += [f"**Results.** {sentence(tell_results(result.results))}", ""]
    lines += [f"**How it was measured.** {_tell_protocol(result)}", ""]
    lines += ["**What was not.** " + sentence("; ".join(result.not_checked)) + ".", ""]
    return "\n".join(lines)


def _tell_protocol(result: TryResult) -> str:
    steps = result.time.steps if result.time else (0, 0)
    words = f"{name_cell(_shorten(result.command))} with and without the change: "
    words += f"{sentence(_tell_measured(result))}; "
    words += f"{steps[0]} and {steps[1]} measured steps, warm-up left out. "
    if result.copies:
        words += f"Both sides ran with {sentence(_shorten(result.copies))}. "
    if result.seed is not None:
        words += f"Both began with the seed {result.seed}. "
    return words + (
        f"Accepted is what is faster by more than {LEAST_GAIN:.0%} at a risk of {DECISION_RISK:g} over all"
        f" looks, {LEAST_PAIRS} pairs at least, with equal results. The interval is Student's over pairs,"
        " corrected for looks."
    )


def _shorten(text: str) -> str:
    """Without the folders above: a pull request tells nobody how a home is laid out."""
    return " ".join(PurePath(word).name if word.startswith("/") else word for word in text.split(" "))
