"""Lines of code: whose a frame is, a script's own or a package's."""

from __future__ import annotations

import sysconfig
from functools import partial
from pathlib import Path
from types import FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

_LIBRARIES = tuple(
    {*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")), "<"}
)
_OWN = str(Path(__file__).parents[1])
_TYPED = ("<stdin>", "<ipython-input")  # other code without a file was made by libraries
PACKAGES = "-packages/"  # site-packages, dist-packages
_LOOPS = str(Path(__file__).parents[1] / "loops")
_ENTRANCE = str(Path(__file__).parents[1] / "__main__.py")
_COMMAND_LINES = tuple(f"{PACKAGES}{name}/" for name in ("typer", "click"))  # around our own verbs


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

    Where no code is the script's own, the line of our own loop stands for it, and in a package that runs as
    a module its outermost. Whoever started our command line is nobody's code.
    """
    inside = outermost = None
    within = ""  # the file of the frame inside of this one
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_LOOPS):
            return frame, inside
        if not name.startswith(_OWN):
            in_package = PACKAGES in name
            is_own = not in_package and (name.startswith(_TYPED) or not name.startswith(_LIBRARIES))
            if is_own and within != _ENTRANCE:
                return frame, inside
            if in_package and not any(one in name for one in _COMMAND_LINES):
                outermost = frame
                if inside is None and f"{PACKAGES}torch/" not in name:
                    inside = frame
        frame, within = frame.f_back, name
    return None if outermost is None else (outermost, None if inside is outermost else inside)


def locate_frame(frame: FrameType) -> CodeLine:
    """Files of packages are told with their folders, a script's own by their names."""
    code = frame.f_code
    _, packages, below = code.co_filename.rpartition(PACKAGES)
    file = below if packages else Path(code.co_filename).name
    if code.co_filename.startswith(_LOOPS):
        file = f"detscope/loops/{Path(code.co_filename).name}"
    return CodeLine(code.co_qualname, file, frame.f_lineno or code.co_firstlineno)


def tell_function(function: Any) -> str | None:
    """Name, file and first line of what a call of it runs; None where that is not written in Python."""
    if isinstance(function, partial):
        function = function.func
    if not isinstance(function, (FunctionType, MethodType)):  # a stranger's object is not asked for anything
        function = next(
            (vars(one)["__call__"] for one in type(function).__mro__ if "__call__" in vars(one)), None
        )
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        return None
    code = function.__code__
    _, packages, below = code.co_filename.rpartition(PACKAGES)
    file = below if packages else Path(code.co_filename).name
    return f"{code.co_qualname} {file}:{code.co_firstlineno}"
