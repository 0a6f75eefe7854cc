"""The first screen of a run on a terminal: at most so many lines, whatever the run has to say."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from detscope.report.colours import GREY, PALETTE, PHASE_COLOURS
from detscope.report.figures import number, percent, plain
from detscope.report.first_screen import CostlyParts, FirstScreen, HeadlineFigure, ShareOfStep
from detscope.report.render.fitting import Lines, Piece, blank_piece, fit_pieces
from detscope.report.render.terminal import labelled, labelled_command, print_line
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


def print_first_screen(screen: FirstScreen, console: Console, most_lines: int = MOST_LINES) -> None:
    """Print a run's first screen; what does not fit is in its sections, which are named at the end."""
    writer = _ScreenWriter(console.width, console.options.ascii_only)
    pieces = writer.make_pieces(screen)
    fit_pieces(pieces, most_lines, console.width)
    for piece in pieces:
        for line in piece.lines:
            print_line(console, line)


class _ScreenWriter:
    """Parts of the screen as lines of one width."""

    def __init__(self, width: int, ascii_only: bool) -> None:
        self._width, self._ascii_only = width, ascii_only

    def make_pieces(self, screen: FirstScreen) -> list[Piece]:
        """Everything in its order; what gives up first has the highest number."""
        say, width, advice = self._say, self._width, screen.advice
        verdict = [Text(line, style="bold") for line in wrap_text(plain(screen.verdict), width)]
        pieces = [
            Piece([Text(shorten_middle(plain(screen.ran), width), style="bold")], 1, 0),
            Piece(say("on", screen.setting), 1, 6, goes_on=True),
            Piece(
                say("passes" if screen.measured in ("image", "pass") else "steps", screen.steps),
                1,
                6,
                goes_on=True,
            ),
            Piece(say("status", screen.status, "bold red"), 1, 4, goes_on=True),
            blank_piece(),
            Piece(verdict, 2, 3, goes_on=True),
            blank_piece(),
            Piece(self._figure_lines(screen.figures, screen.measured), 1, 2),
            Piece(self._bar_lines(screen.bar), 2, 5),
            *(Piece(self._costly_lines(parts), 1, 4) for parts in screen.costly),
            Piece(self._advice_lines(screen), 1, 6, goes_on=True),
            Piece(say("", advice.place if advice else ""), 1, 5, goes_on=True),
            Piece(say("", advice.how if advice else ""), 1, 6, goes_on=True),
            Piece(self._command_lines("", advice.command if advice else ""), 0, 3, whole=True),
            Piece(say("trust", screen.trust, STYLES[screen.trust_tone]), 1, 6, goes_on=True),
            Piece(self._note_lines(screen.notes), 0, 8, goes_on=True),
            blank_piece(),
            Piece(self._file_lines(screen), 1, 6, goes_on=True),
            Piece(self._command_lines("next", screen.next_command), 0, 7, whole=True),
            Piece(self._section_lines(screen), 1, 1),
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
