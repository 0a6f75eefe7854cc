"""Importing a user's file or module, and saying where it went wrong."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from detscope.errors import UsageError


@contextmanager
def imports_possible(file: Path | None) -> Iterator[None]:
    """Let the user's code import its neighbours, as it could if it were run as a script."""
    before = list(sys.path)
    sys.path[:0] = [str(file.resolve().parent)] if file is not None else [str(Path.cwd())]
    try:
        yield
    finally:
        sys.path[:] = before


def import_named(spec: str, source: str, is_file: bool) -> ModuleType:
    """The user's module; whatever its code raises becomes a UsageError with the place."""
    try:
        return _import_file(Path(source)) if is_file else importlib.import_module(source)
    except ModuleNotFoundError as problem:
        if not is_file and problem.name and (source == problem.name or source.startswith(f"{problem.name}.")):
            raise UsageError(
                f"model {spec}: there is no module {problem.name}",
                "run from the folder that holds the package, or name the file: path/to/file.py:factory",
            ) from problem
        raise _cannot_import(spec, source, problem) from problem
    except SyntaxError as problem:
        where = f"{problem.filename}:{problem.lineno}"
        raise UsageError(f"model {spec}: {where}: {problem.msg}", "correct the file") from problem
    except Exception as problem:
        raise _cannot_import(spec, source, problem) from problem


def failure_place(problem: BaseException) -> str:
    """Where the user's code raised: the innermost frame of the traceback that is not the library's."""
    frames = [
        frame
        for frame in traceback.extract_tb(problem.__traceback__)
        if "site-packages" not in frame.filename and not frame.filename.startswith("<")
    ]
    own = Path(__file__).parent
    users = [frame for frame in frames if Path(frame.filename).parent != own]
    return f" (at {users[-1].filename}:{users[-1].lineno})" if users else ""


def _import_file(path: Path) -> ModuleType:
    # a name of its own per path: two files called model.py must not replace each other
    name = f"{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file", "name a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up here while it is being imported
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _cannot_import(spec: str, source: str, problem: Exception) -> UsageError:
    return UsageError(
        f"model {spec}: importing {source} raised "
        f"{type(problem).__name__}: {problem}{failure_place(problem)}",
        "import it in Python to see the whole traceback",
    )
