"""The largest findings of a run on a terminal: each with its line, its costs and what to change."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from detscope.analyze.findings.finding import ASSUMES, Finding
from detscope.analyze.findings.listing import RunFindings, fit_whole
from detscope.analyze.summary import RunSummary
from detscope.report.blocks.suggestions import assumed_text, name_in_command, place_text
from detscope.report.figures import interval, number, plain, with_unit
from detscope.report.render.fitting import Lines
from detscope.report.render.terminal import labelled, labelled_command, print_line
from detscope.report.render.wrapping import pad_cells, shorten_middle, wrap_text

_CELLS = 11  # of the words on the left
_INDENT = 4
_CLOCKS = {"host": "the host's clock", "device": "the device's clock"}


def print_findings(
    told: RunFindings, summary: RunSummary, name: str, console: Console, most_bytes: int | None
) -> None:
    """Print as many as have room, whole, and say what was left out; `name` is what verbs take."""

    def take(count: int) -> Lines:
        writer = _Writer(summary, name, console.width)
        return list(writer.write_all(told, count))

    def size_of(lines: Lines) -> int:
        return sum(len(line.plain.encode()) + 1 for line in lines)

    for line in fit_whole(take, len(told.findings), most_bytes, size_of):
        print_line(console, line)


class _Writer:
    """Findings as lines of one width."""

    def __init__(self, summary: RunSummary, name: str, width: int) -> None:
        self._summary, self._name, self._width = summary, name, min(width, 110)

    def write_all(self, told: RunFindings, count: int) -> Iterator[Text]:
        """What was counted, the findings, and below them what holds for all of them."""
        shown = told.findings[:count]
        left = told.left_out + len(told.findings) - count
        at_lines = [one for one in shown if one.where]
        tried = {one.verify for one in at_lines if one.verify and one.diff is None}
        shared = tried.pop() if len(tried) == 1 else ""
        yield from self._head(told, len(told.findings) + told.left_out)
        for number_, finding in enumerate(shown, 1):
            yield Text()
            yield from self._write_one(number_, finding, shared)
        yield Text()
        if any(one.on_device is not None for one in shown):
            yield from labelled("estimates", f"on a device: {ASSUMES}", self._width, "dim", _CELLS)
        if shared:
            command = name_in_command(shared, self._summary, self._name)
            yield from labelled_command("try one", command, self._width, _CELLS)
        if told.make_census and not self._failed:
            yield from self._command_below("lines", "a census finds them:", told.make_census)
        if left:
            everything = f"detscope why {self._name} --limit {len(told.findings) + told.left_out}"
            many = f"{left} more finding{'s' if left > 1 else ''}:"
            yield from self._command_below("more", many, everything)

    @property
    def _failed(self) -> bool:
        """Whether the run ended before there was a step to look at."""
        return self._summary.status == "failed" and not self._summary.step_ms.n

    def _head(self, told: RunFindings, total: int) -> Iterator[Text]:
        model = self._summary.model.name if self._summary.model else None
        many = f"{total} finding{'s' if total != 1 else ''}" if total else "no finding"
        counted = ""
        if told.waits is not None and told.launches is not None:
            waits, launches = number(told.waits, 0), number(told.launches, 0)
            counted = f"; a step waits for the device {waits} times and launches {launches} operators"
        if self._failed:
            counted = f": no step was recorded; failed: {self._summary.reason or 'the reason is not known'}"
        text = f"{model or 'run'}: {many}{counted}"
        for line in wrap_text(plain(text), self._width):
            yield Text(line, style="bold")

    def _command_below(self, label: str, text: str, command: str) -> Iterator[Text]:
        room = self._width - _CELLS - 1
        if len(text) + 1 + len(command) <= room:
            yield Text.assemble((pad_cells(label, _CELLS + 1), "dim"), f"{text} ", (plain(command), "cyan"))
            return
        yield from labelled(label, text, self._width, "", _CELLS)
        yield from labelled_command("", command, self._width, _CELLS)

    def _write_one(self, number_: int, one: Finding, shared: str) -> Iterator[Text]:
        title = wrap_text(plain(one.claim[:1].upper() + one.claim[1:]), self._width - _INDENT)
        for index, line in enumerate(title):
            begin = f"{number_:>2}  " if index == 0 else " " * _INDENT
            yield Text.assemble((begin, "dim"), (line, "bold"))
        for line in self._places(one):
            yield Text(" " * _INDENT + line)
        if one.code:
            code = shorten_middle(plain(one.code.strip()), self._width - _INDENT - 2)
            yield Text(" " * (_INDENT + 2) + code, style="green")
        facts = [("here", _tell_here(one)), ("on a device", assumed_text(one)), ("because", _why(one))]
        facts.append(("change", one.change if one.change != one.claim else ""))
        for label, text in facts:
            if text:
                yield from self._fact(label, text)
        for line in _changed_lines(one):
            shown = shorten_middle(plain(line), self._width - _INDENT - 2)
            yield Text(" " * (_INDENT + 2) + shown, style="red" if line.startswith("-") else "green")
        if one.verify and one.verify != shared:
            command = name_in_command(one.verify, self._summary, self._name)
            for row in labelled_command("try it", command, self._width - _INDENT, _CELLS):
                yield Text(" " * _INDENT).append_text(row)
        yield Text(" " * _INDENT + one.id, style="dim")

    def _fact(self, label: str, text: str) -> Iterator[Text]:
        for line in labelled(label, text, self._width - _INDENT, "", _CELLS):
            yield Text(" " * _INDENT).append_text(line)

    def _places(self, one: Finding) -> Iterator[str]:
        """The first line whole, other lines of the same file by their numbers."""
        if not one.where:
            return
        first, *others = one.where
        text = place_text(first)
        same = [str(place.line) for place in others if place.file == first.file]
        beside = len(others) - len(same) + one.more_places
        if same:
            text += f", also line{'s' if len(same) > 1 else ''} {', '.join(same[:6])}"
            beside += len(same[6:])
        text += f" and {beside} more" if beside else ""
        text += f", from {place_text(one.called_from)}" if one.called_from is not None else ""
        yield from wrap_text(plain(text), self._width - _INDENT)


def _tell_here(one: Finding) -> str:
    """What it costs here, with its interval and clock, and how sure it is."""
    sure = one.confidence or f"cannot tell: {one.cannot_tell}"
    if one.cost_ms is None:
        saves = f"{with_unit(one.saves_bytes, 'bytes')} of the peak" if one.saves_bytes is not None else ""
        return f"saves {saves}; {sure}" if saves else sure
    if not one.where:
        return f"saves up to {with_unit(one.cost_ms, 'ms')} a step by {_CLOCKS[one.clock]}; {sure}"
    ends = "" if one.cost_low_ms is None else f" {interval([one.cost_low_ms, one.cost_high_ms or 0.0])}"
    return f"{with_unit(one.cost_ms, 'ms')}{ends} a step by {_CLOCKS[one.clock]}; {sure}"


def _changed_lines(one: Finding) -> list[str]:
    """Of a diff what it takes and gives, without what stands around."""
    lines = (one.diff or "").splitlines()
    return [line for line in lines if line.startswith(("-", "+")) and not line.startswith(("--- ", "+++ "))]


def _why(one: Finding) -> str:
    return one.evidence.text
