"""Somebody's script: what a name behind `detscope run` means, and running it as Python itself would."""

from __future__ import annotations

import builtins
import os
import runpy
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

from detscope.errors import InputError

_FIRST_BYTES = 4096  # long enough for the longest first lines that installers write


@dataclass(frozen=True)
class ScriptTarget:
    """A file, `-` for standard input, or with `-m` a module; and its arguments."""

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    typed: str = ""  # where that is not the name: a command that was looked up

    @property
    def is_input(self) -> bool:
        """Whether the script itself comes by standard input."""
        return self.name == "-" and not self.is_module

    @property
    def command(self) -> tuple[str, ...]:
        """What starts it again behind `detscope run`; empty where standard input was read up."""
        if self.is_input:
            return ()
        return (*(("-m",) if self.is_module else ()), self.typed or self.name, *self.arguments)


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
    if is_application(name):
        return ScriptTarget(name, arguments)
    if is_runnable_module(name):
        return ScriptTarget(name, arguments, is_module=True)
    if Path(name).is_dir():
        raise InputError(f"{name} is a folder, not a script", "give a file, or -m MODULE")
    looked = f"looked for the file {Path(name).absolute()}"
    if _is_bare(name):
        environment = Path(sys.executable).parent
        looked += f", the command {name} in {environment} and on PATH, a module {name} to run"
    raise InputError(f"no script {name}", f"{looked}; give the path of a Python file, or -m MODULE")


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
    program = _find_interpreter(head)
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
    folder = Path(program).parent.resolve()  # a bare name is whichever Python comes first on PATH
    if installed and Path(program).is_absolute() and folder != Path(sys.executable).parent.resolve():
        raise InputError(
            f"{path} belongs to another Python ({program})",
            f"install detscope there, too, and use it: {program} -m detscope run ...",
        )


def _find_interpreter(head: bytes) -> str | None:
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


def seed_everything(seed: int) -> None:
    """What a script without seeds of its own draws from, for `--seed`; one that has some sets them again."""
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def is_application(name: str) -> bool:
    """Whether Python looks for a `__main__.py` inside: a folder that has one, or an archive."""
    return (Path(name) / "__main__.py").is_file() or zipfile.is_zipfile(name)


_run_as_main = vars(runpy)["_run_module_as_main"]  # what `python -m` itself calls
_kept: list[ModuleType] = []  # the module that was `__main__` before: the frames above us live in it


def execute_script(target: ScriptTarget) -> None:
    """Run it; whatever it raises comes out."""
    module = ModuleType("__main__")
    vars(module)["__builtins__"] = builtins
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = module
    sys.argv[:] = [target.name, *target.arguments]
    # as Python does, not in its shortest form
    path = target.name if Path(target.name).is_absolute() else f"{Path.cwd()}{os.sep}{target.name}"
    if target.is_module:
        _set_first_path(str(Path.cwd()))
        _run_as_main(target.name)
    elif target.is_input:
        _set_first_path("")
        vars(module)["__annotations__"] = {}
        exec(compile(sys.stdin.buffer.read(), "<stdin>", "exec", dont_inherit=True), vars(module))
    elif is_application(path):
        _set_first_path(path)
        _run_as_main("__main__", False)
    else:
        _set_first_path(str(Path(path).resolve().parent))
        loader = SourceFileLoader("__main__", path)
        vars(module).update(
            __file__=path, __loader__=loader, __cached__=None, __annotations__={}, __package__=None
        )
        exec(compile(loader.get_data(path), path, "exec", dont_inherit=True), vars(module))


def end_threads() -> None:
    """Wait for the threads that Python would wait for at its end, in its way: they belong to the script.

    Those of pools that nobody has shut down end once they are told that no work will come.
    """
    for told in reversed(vars(threading).get("_threading_atexits", ())):
        told()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


_OF_POLARS = "_RJEM_MALLOC_CONF"  # it tells its allocator by the environment, which the script would hand on


@contextmanager
def own_imports() -> Iterator[None]:
    """Import as if the script's folder were not there: it may hold a `statistics.py` of its own.

    Modules of Python's that are replaced there are ours while this lasts, and the script's again afterwards.
    """
    first = sys.path[:1]
    folders = [Path(one) for one in first if one]
    loaded = {name: sys.modules[name] for name in sys.stdlib_module_names & sys.modules.keys()}
    files = {name: getattr(module, "__file__", None) for name, module in loaded.items()}
    theirs = {name: loaded[name] for name, file in files.items() if file and Path(file).parent in folders}
    for name in theirs:
        del sys.modules[name]
    del sys.path[:1]
    setting = os.environ.get(_OF_POLARS)
    try:
        yield
    finally:
        os.environ.pop(_OF_POLARS, None)
        if setting is not None:
            os.environ[_OF_POLARS] = setting
        sys.path[:0] = first
        for name in sys.stdlib_module_names & sys.modules.keys() - loaded.keys():
            if any((folder / f"{name}.py").is_file() for folder in folders):
                del sys.modules[name]
        sys.modules.update(theirs)


def _set_first_path(folder: str) -> None:
    """Python puts the script's folder in front of the path; in front is now ours."""
    if getattr(sys.flags, "safe_path", False):
        return
    if sys.path:
        sys.path[0] = folder
    else:
        sys.path.append(folder)
