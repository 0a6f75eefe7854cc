"""Commands on a terminal of 80 x 25, as a person sees them."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

COLUMNS, ROWS = 80, 25
COMMAND = [sys.executable, "-c", "from detscope.cli.main import main; main()"]
_CONTROL = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+|\x1b")


def run_on_terminal(args: list[str], cwd: Path, ends_with: int = 0) -> list[str]:
    """The lines that a terminal shows in the end, standard error among them."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(cwd)
        os.environ.update(TERM="xterm-256color", LANG="C.UTF-8", PYTHONIOENCODING="utf-8")
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            os.environ.pop(name, None)
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.execvp(COMMAND[0], [*COMMAND, *args])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    written = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the child has closed its end
            break
        if not part:
            break
        written += part
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    text = written.decode("utf-8")
    assert os.waitstatus_to_exitcode(status) == ends_with, text
    return replay_terminal(text)


def replay_terminal(text: str) -> list[str]:
    """Every line a terminal would show, scrolled away or not; cursor movements of a progress bar obeyed."""
    lines, row, column = [""], 0, 0
    for found in _CONTROL.finditer(text):
        numbers, letter, plain = found.group(1), found.group(2), found.group(0)
        if letter == "A":
            row = max(0, row - int(numbers or 1))
        elif letter == "K":
            lines[row] = "" if numbers == "2" else lines[row][:column]
        elif letter or plain == "\x1b":
            continue  # colours, the cursor's visibility
        elif plain == "\r":
            column = 0
        elif plain == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        else:
            for character in plain:
                if column == COLUMNS:  # the terminal itself breaks the line
                    row, column = row + 1, 0
                    lines += [""] * (row + 1 - len(lines))
                lines[row] = lines[row][:column].ljust(column) + character + lines[row][column + 1 :]
                column += 1
    while lines and not lines[-1].strip():
        lines.pop()
    return lines
