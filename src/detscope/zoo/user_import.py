"""Importing a user's file or module, and saying where it went wrong."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from detscope.errors import OwnCodeError, UsageError
from detscope.faults import said_by, user_frame


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
    """The user's module; whatever its code raises becomes an error with the place."""
    try:
        return _import_file(Path(source)) if is_file else importlib.import_module(source)
    except ModuleNotFoundError as problem:
        if not is_file and problem.name and (source == problem.name or source.startswith(f"{problem.name}.")):
            raise UsageError(
                f"model {spec}: there is no module {problem.name}",
                "run from the folder that holds the package, or name the file: path/to/file.py:factory",
            ) from problem
        raise own_code_failed(spec, f"importing {source}", problem) from problem
    except SyntaxError as problem:
        where = f"{problem.filename}:{problem.lineno}"
        raise OwnCodeError(f"model {spec}: {where}: {problem.msg}", "correct the file") from problem
    except Exception as problem:
        raise own_code_failed(spec, f"importing {source}", problem) from problem


def own_code_failed(spec: str, doing: str, problem: Exception) -> OwnCodeError:
    """What the user's code raised, with its line, where one of theirs was running."""
    frame = user_frame(problem)
    place = f" (at {frame})" if frame else ""
    return OwnCodeError(
        f"model {spec}: {doing} raised {said_by(problem)}{place}",
        "do the same in Python to see the whole traceback",
    )


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
