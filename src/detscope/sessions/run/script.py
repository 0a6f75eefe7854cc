"""Running somebody's script as Python itself would: as `__main__`, with its arguments, path and folder."""

from __future__ import annotations

import builtins
import runpy
import sys
import threading
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType


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


_kept: list[ModuleType] = []  # the module that was `__main__` before: the frames above us live in it


def execute_script(target: ScriptTarget) -> None:
    """Run it; whatever it raises comes out."""
    module = ModuleType("__main__")
    vars(module)["__builtins__"] = builtins
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = module
    sys.argv[:] = [target.name, *target.arguments]
    if target.is_module:
        _set_first_path(str(Path.cwd()))
        run_as_main = vars(runpy)["_run_module_as_main"]  # what `python -m` itself calls
        run_as_main(target.name)
    elif target.is_input:
        _set_first_path("")
        vars(module)["__annotations__"] = {}
        code = compile(sys.stdin.buffer.read(), "<stdin>", "exec", dont_inherit=True)
        exec(code, vars(module))
    else:
        path = str(Path(target.name).absolute())
        _set_first_path(str(Path(path).resolve().parent))
        loader = SourceFileLoader("__main__", path)
        vars(module).update(
            __file__=path, __loader__=loader, __cached__=None, __annotations__={}, __package__=None
        )
        code = compile(loader.get_data(path), path, "exec", dont_inherit=True)
        exec(code, vars(module))
    _wait_for_threads()


def _set_first_path(folder: str) -> None:
    """Python puts the script's folder in front of the path; in front is now ours."""
    if getattr(sys.flags, "safe_path", False):
        return
    if sys.path:
        sys.path[0] = folder
    else:
        sys.path.append(folder)


def _wait_for_threads() -> None:
    """Threads that Python would wait for at its end belong to the script."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
