"""The first screen of a run on a terminal: at most so many lines, whatever the run has to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from detscope.report.colours import GREY, PALETTE, PHASE_COLOURS
from detscope.report.figures import number, percent, plain
from detscope.report.first_screen import CostlyParts, FirstScreen, HeadlineFigure, ShareOfStep
from detscope.report.render.terminal import Lines, labelled, labelled_command, print_line
from detscope.report.render.terminal_table import STYLES
from detscope.report.render.wrapping import pad_cells, shorten_middle, wrap_text

MOST_LINES = 22  # of 25: two lines of a note and the prompt are on the same screen
LABEL_CELLS = 7
MOST_NAME_CELLS = 24  # of a run that is named once more
SHOWN_SHARE = 0.005  # of the bar: what is less is only in the section
# told apart without colours too
_FILLS = {"data": "░", "transfer": "┄", "forward": "▒", "backward": "█", "optimizer": "▓", "other": "─"}
_OTHER_FILLS = "█░▒▓─┄"
_ASCII_FILLS = {"data": "d", "transfer": "t", "forward": "f", "backward": "B", "optimizer": "o", "other": "."}
_OTHER_ASCII = "#-=+.:"


@dataclass
class _Piece:
    """Lines that belong together, and how many of them must stay."""

    lines: Lines
    least: int
    gives_up: int  # the higher, the earlier it is shortened
    goes_on: bool = False  # sentences: where their end is left out, one sees it
    whole: bool = False  # a command: half of it is worse than none


def print_first_screen(screen: FirstScreen, console: Console, most_lines: int = MOST_LINES) -> None:
    """Print a run's first screen; what does not fit is in its sections, which are named at the end."""
    writer = _ScreenWriter(console.width, console.options.ascii_only)
    for line in _fit_pieces(writer.make_pieces(screen), most_lines, console.width):
        print_line(console, line)


def _blank() -> _Piece:
    return _Piece([Text()], 0, 9)


def _fit_pieces(pieces: Sequence[_Piece], most_lines: int, width: int) -> Lines:
    """All lines; where they are too many, the least important piece loses its last one, again and again."""
    while sum(_height_of(piece.lines, width) for piece in pieces) > most_lines:
        longer = [piece for piece in pieces if len(piece.lines) > piece.least]
        if not longer:
            break
        chosen = max(longer, key=lambda piece: (piece.gives_up, len(piece.lines)))
        del chosen.lines[0 if chosen.whole else -1 :]
        if chosen.lines and chosen.goes_on:
            chosen.lines[-1] = _mark_cut(chosen.lines[-1], width)
    return [line for piece in pieces for line in piece.lines]


def _height_of(lines: Lines, width: int) -> int:
    """Rows of a terminal: what nobody may break, such as a long path in a command, takes several."""
    return sum(max(1, -(-line.cell_len // width)) for line in lines)


def _mark_cut(line: Text, width: int) -> Text:
    """A sentence whose end is left out shows it."""
    text = line.plain.removesuffix(" …")
    while cell_len(text) > width - 2:
        text = text.rpartition(" ")[0]
    cut = line[: len(text)]
    return cut.append(" …")


class _ScreenWriter:
    """Parts of the screen as lines of one width."""

    def __init__(self, width: int, ascii_only: bool) -> None:
        self._width, self._ascii_only = width, ascii_only

    def make_pieces(self, screen: FirstScreen) -> list[_Piece]:
        """Everything in its order; what gives up first has the highest number."""
        say, width, advice = self._say, self._width, screen.advice
        verdict = [Text(line, style="bold") for line in wrap_text(plain(screen.verdict), width)]
        pieces = [
            _Piece([Text(shorten_middle(plain(screen.ran), width), style="bold")], 1, 0),
            _Piece(say("on", screen.setting), 1, 6, goes_on=True),
            _Piece(
                say("passes" if screen.measured in ("image", "pass") else "steps", screen.steps),
                1,
                6,
                goes_on=True,
            ),
            _Piece(say("status", screen.status, "bold red"), 1, 4, goes_on=True),
            _blank(),
            _Piece(verdict, 2, 3, goes_on=True),
            _blank(),
            _Piece(self._figure_lines(screen.figures, screen.measured), 1, 2),
            _Piece(self._bar_lines(screen.bar), 2, 5),
            *(_Piece(self._costly_lines(parts), 1, 4) for parts in screen.costly),
            _Piece(self._advice_lines(screen), 1, 6, goes_on=True),
            _Piece(say("", advice.place if advice else ""), 1, 5, goes_on=True),
            _Piece(say("", advice.how if advice else ""), 1, 6, goes_on=True),
            _Piece(self._command_lines("", advice.command if advice else ""), 0, 3, whole=True),
            _Piece(say("trust", screen.trust, STYLES[screen.trust_tone]), 1, 6, goes_on=True),
            _Piece(self._note_lines(screen.notes), 0, 8, goes_on=True),
            _blank(),
            _Piece(self._file_lines(screen), 1, 6, goes_on=True),
            _Piece(self._command_lines("next", screen.next_command), 0, 7, whole=True),
            _Piece(self._section_lines(screen), 1, 1),
        ]
        return [piece for piece in pieces if piece.lines]

    def _say(self, label: str, text: str, style: str = "") -> Lines:
        return labelled(label, text, self._width, style, LABEL_CELLS) if text else []

    def _figure_lines(self, figures: Sequence[HeadlineFigure], label: str) -> Lines:
        """Side by side; intervals only where they need no line more."""
        whole = self._join_texts([_figure_text(figure, figure.detail) for figure in figures], label)
        if len(whole) < 2:
            return whole
        detail = {"peak"}  # whose it is decides what it means
        return self._join_texts(
            [_figure_text(figure, figure.detail if figure.label in detail else "") for figure in figures],
            label,
        )

    def _join_texts(self, texts: Sequence[Text], label: str = "") -> Lines:
        lines = [Text(pad_cells(label, LABEL_CELLS + 1), style="dim")] if texts else []
        empty = True
        for text in texts:
            if not empty and lines[-1].cell_len + 2 + text.cell_len > self._width:
                lines.append(Text(" " * (LABEL_CELLS + 1)))
                empty = True
            lines[-1] = Text.assemble(lines[-1], "" if empty else "  ", text)
            empty = False
        return lines

    def _command_lines(self, label: str, command: str) -> Lines:
        """A command; one that no line can hold is left out where it is only an offer."""
        lines = labelled_command(label, command, self._width, LABEL_CELLS) if command else []
        too_long = any(line.cell_len > self._width for line in lines)
        return [] if too_long and label == "next" else lines

    def _bar_lines(self, parts: Sequence[ShareOfStep]) -> Lines:
        """The bar, and beneath it what its parts are; small ones are left to the section."""
        room = self._width - LABEL_CELLS - 1
        bar, legend, begin, drawn = Text(), [], 0, 0.0
        for index, part in enumerate(parts):
            fill, colour = _look_of(part.name, index, self._ascii_only)
            drawn += part.share or 0.0
            end = round(max(0.0, min(1.0, drawn)) * room)
            bar.append(fill * (end - begin), style=colour)
            begin = end
            if (part.share or 0.0) >= SHOWN_SHARE:
                words = f" {plain(part.name)} {number(part.ms)} ms {100 * (part.share or 0.0):.0f} %"
                legend.append(Text.assemble((fill, colour), words))
        if not legend:
            return []
        return [Text.assemble(" " * (LABEL_CELLS + 1), bar), *self._join_texts(legend)]

    def _costly_lines(self, costly: CostlyParts) -> Lines:
        figures = [part.text or f"{number(part.ms)} ms" for part in costly.parts]
        shares = ["" if part.share is None else percent(part.share) for part in costly.parts]
        cells = max(map(len, figures)), max(map(len, shares))
        room = self._width - LABEL_CELLS - 1 - sum(cells) - 4
        longest = min(room, max(24, *(cell_len(plain(part.name)) for part in costly.parts)))
        lines = []
        for index, part in enumerate(costly.parts):
            name = pad_cells(shorten_middle(plain(part.name), longest), longest)
            text = f"{name}  {pad_cells(figures[index], cells[0], right=True)}"
            text += f"  {pad_cells(shares[index], cells[1], right=True)}" if cells[1] else ""
            label = pad_cells(costly.title if index == 0 else "", LABEL_CELLS + 1)
            lines.append(Text.assemble((label, "dim"), text))
        return lines

    def _advice_lines(self, screen: FirstScreen) -> Lines:
        advice = screen.advice
        if advice is None:
            return []
        more = f"; 1 of {screen.more_advice + 1}" if screen.more_advice else ""
        gain = f" ({advice.gain}{more})" if advice.gain else ""
        return self._say("advice", advice.title + gain, "bold")

    def _note_lines(self, notes: Sequence[str]) -> Lines:
        lines: Lines = []
        for index, note in enumerate(notes):
            lines += self._say("note" if index == 0 else "", note, "yellow")
        return lines

    def _file_lines(self, screen: FirstScreen) -> Lines:
        first, *others = screen.files or ("",)
        held = f" and {', '.join(others)}" if others else ""
        return self._say("files", f"{screen.folder}/{first}{held}" if first else screen.folder)

    def _section_lines(self, screen: FirstScreen) -> Lines:
        """The names that `show --section` takes."""
        names = ", ".join([*screen.sections, "all"])
        run = screen.name if len(screen.name) <= MOST_NAME_CELLS else "RUN"
        return self._say("more", f"detscope show {run} --section NAME: {names}")


def _figure_text(figure: HeadlineFigure, detail: str) -> Text:
    return Text.assemble(
        ("" if figure.label == "speed" else f"{figure.label} ", "dim"),
        (plain(figure.value), "bold"),
        (f" {plain(detail)}" if detail else "", "dim"),
    )


def _look_of(name: str, index: int, ascii_only: bool) -> tuple[str, str]:
    fills, others = (_ASCII_FILLS, _OTHER_ASCII) if ascii_only else (_FILLS, _OTHER_FILLS)
    known = PHASE_COLOURS.get(name)
    fill = fills[name] if name in fills else others[index % len(others)]
    return fill, known or (GREY if index == 0 else PALETTE[index % len(PALETTE)])
