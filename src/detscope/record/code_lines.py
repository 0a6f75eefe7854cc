"""Lines of code: whose a frame is, a script's own or a package's."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import FrameType
from typing import NamedTuple

_LIBRARIES = tuple(
    {*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")), "<"}
)
_OWN = str(Path(__file__).parents[1])
_TYPED = ("<stdin>", "<ipython-input")  # other code without a file was made by libraries
PACKAGES = "-packages/"  # site-packages, dist-packages


class CodeLine(NamedTuple):
    """A line of code."""

    function: str
    file: str
    line: int


class CodeLook(NamedTuple):
    """What ran at one moment: the script's own line, and the line of a package that it had called."""

    own: CodeLine
    inside: CodeLine | None = None  # the innermost that is neither torch's nor Python's


def look_at(frame: FrameType | None) -> CodeLook | None:
    """The innermost frame of the script's own code, and that of a package inside of it."""
    found = find_frames(frame)
    if found is None:
        return None
    own, inside = found
    return CodeLook(locate_frame(own), inside and locate_frame(inside))


def find_frames(frame: FrameType | None) -> tuple[FrameType, FrameType | None] | None:
    """The innermost frame of the script's own code; inside of it the innermost of a package but torch.

    Where no code is the script's own, as in a package that runs as a module, its outermost stands for it.
    """
    inside = outermost = None
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OWN):
            in_package = PACKAGES in name
            if not in_package and (name.startswith(_TYPED) or not name.startswith(_LIBRARIES)):
                return frame, inside
            if in_package:
                outermost = frame
                if inside is None and f"{PACKAGES}torch/" not in name:
                    inside = frame
        frame = frame.f_back
    return None if outermost is None else (outermost, None if inside is outermost else inside)


def locate_frame(frame: FrameType) -> CodeLine:
    """Files of packages are told with their folders, a script's own by their names."""
    code = frame.f_code
    _, packages, below = code.co_filename.rpartition(PACKAGES)
    file = below if packages else Path(code.co_filename).name
    return CodeLine(code.co_qualname, file, frame.f_lineno or code.co_firstlineno)
