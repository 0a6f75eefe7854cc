"""What a name behind `detscope run` means: a file, a command as a shell finds it, or a module."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from detscope.errors import InputError
from detscope.sessions.run.script import ScriptTarget

_FIRST_BYTES = 4096  # long enough for the longest first lines that installers write


def find_target(name: str, arguments: tuple[str, ...], is_module: bool = False) -> ScriptTarget:
    """What is to be run. Nothing is imported: one that is not there is said before that."""
    if is_module or name == "-":
        return ScriptTarget(name, arguments, is_module)
    if Path(name).is_file():
        check_python(Path(name))
        return ScriptTarget(name, arguments)
    command = find_command(name)
    if command is not None:
        check_python(command, installed=True)
        return ScriptTarget(str(command), arguments, typed=name)
    if is_runnable_module(name):
        return ScriptTarget(name, arguments, is_module=True)
    if Path(name).is_dir():
        raise InputError(f"{name} is a folder, not a script", "give a file, or -m MODULE")
    raise InputError(f"no script {name}", _looked_for(name))


def _looked_for(name: str) -> str:
    looked, wanted = (
        f"looked for the file {Path(name).absolute()}",
        "give the path of a Python file, or -m MODULE",
    )
    if not _is_bare(name):
        return f"{looked}; {wanted}"
    environment = Path(sys.executable).parent
    return f"{looked}, the command {name} in {environment} and on PATH, a module {name} to run; {wanted}"


def _is_bare(name: str) -> bool:
    """A name that a shell looks up; with a separator it is a path."""
    return bool(name) and os.sep not in name and not (os.altsep and os.altsep in name)


def find_command(name: str) -> Path | None:
    """The program that a shell would start; those of the environment that is running come first."""
    if not _is_bare(name):
        return None
    folders = [str(Path(sys.executable).parent), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    for folder in folders:
        found = Path(folder or ".") / name
        if found.is_file() and os.access(found, os.X_OK):
            return found
    return None


def check_python(path: Path, installed: bool = False) -> None:
    """Refuse in one line what this Python cannot run: programs of others, and of another Python."""
    try:
        with path.open("rb") as file:
            head = file.read(_FIRST_BYTES)
    except OSError:
        return  # Python itself says what is wrong
    program = _interpreter(head)
    if program is None:
        if installed and path.name.startswith("python"):
            raise InputError(
                f"{path.name} itself is no script", f"leave {path.name} out: detscope run SCRIPT"
            )
        if installed:
            raise InputError(f"{path} is no Python program", "detscope run records programs in Python")
        return
    if "python" not in Path(program).name and "pypy" not in Path(program).name:
        raise InputError(
            f"{path} is a program of {Path(program).name}, not of Python",
            "give the Python file that it starts, or put `detscope run` before that inside of it",
        )
    if installed and not _is_ours(program):
        raise InputError(
            f"{path} belongs to another Python ({program})",
            f"install detscope there, too, and use it: {program} -m detscope run ...",
        )


def _interpreter(head: bytes) -> str | None:
    """The program of a first line `#!`; installers hide one whose path is long behind a line for a shell."""
    if not head.startswith(b"#!"):
        return None
    lines = head.decode("utf-8", "replace").splitlines()
    words = lines[0][2:].split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if not words:
        return None
    if Path(words[0]).name == "sh" and len(lines) > 1 and lines[1].startswith("'''exec'"):
        return lines[1].removeprefix("'''exec'").strip().removesuffix('"$0" "$@"').strip().strip("\"'")
    return words[0]


def _is_ours(program: str) -> bool:
    """Whether it is the Python that runs now, or whichever comes first on PATH."""
    return not Path(program).is_absolute() or (
        Path(program).parent.resolve() == Path(sys.executable).parent.resolve()
    )


def is_runnable_module(name: str) -> bool:
    """Whether `python -m NAME` would find something to run, told without importing any of it."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return False
    places: list[str] | None = [str(Path.cwd()), *sys.path]
    spec = None
    for depth in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:depth]), places)
        if spec is None:
            return False
        places = list(spec.submodule_search_locations or [])
    if places:
        return PathFinder.find_spec(f"{name}.__main__", places) is not None
    return spec is not None and spec.origin is not None and spec.origin.endswith(".py")
