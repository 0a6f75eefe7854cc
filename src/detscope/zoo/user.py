"""The user's own model: `path/to/file.py:factory` or `package.module:factory`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from detscope.errors import OwnCodeError, UsageError
from detscope.faults import describe_error, find_user_frame
from detscope.zoo.contract import BuildOptions, BuiltModel, ModelCard, Stage, WeightsUsed
from detscope.zoo.family import UNKNOWN, has_target
from detscope.zoo.outputs import name_kind
from detscope.zoo.registry import recognise_family, recognise_parts

if TYPE_CHECKING:
    from torch import nn

_FORM = "path/to/file.py:factory or package.module:factory"
_RESULTS = "return an nn.Module, a (module, stages) pair, or a detscope BuiltModel"
_NOTE = "weights as the factory made them; if random, proposal and NMS load differ from a trained model's"


def describe_spec(spec: str) -> ModelCard:
    """What can be said of a user's model before its code runs; a wrong path is an error already here."""
    source, _ = _split_spec(spec)
    if _is_file(source) and not Path(source).is_file():
        raise UsageError(f"model {spec}: there is no file {source}", f"expected {_FORM}")
    return ModelCard(spec, "user", "user", None, "its own", "none")


def build_own(spec: str, options: BuildOptions) -> BuiltModel:
    """Import, call the factory, and describe what it gave."""
    from detscope.zoo.weights import check_choice, find_weights, load_into, seed_weights

    card = describe_spec(spec)
    for option in ("image_size", "trainable_layers"):
        if getattr(options, option) is not None:
            raise UsageError(f"{option} is not known for {spec}", "let the factory set it")
    check_choice(options.weights, spec, has_published=False)
    source, name = _split_spec(spec)
    with _allow_imports(Path(source) if _is_file(source) else None), seed_weights(options.seed):
        module: Any = _import_named(spec, source, _is_file(source))
        if not hasattr(module, name):
            public = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
            own = [key for key in public if getattr(vars(module)[key], "__module__", "") == module.__name__]
            raise UsageError(
                f"model {spec}: {module.__name__} has no {name!r}",
                f"it has: {', '.join(own[:8])}" if own else f"expected {_FORM}",
            )
        factory = getattr(module, name)
        if not callable(factory):
            raise UsageError(
                f"model {spec}: {name} is {name_kind(factory)} and cannot be called",
                "name a function or class",
            )
        given = options.num_classes is not None and _accepts_argument(factory, "num_classes")
        try:
            made = factory(num_classes=options.num_classes) if given else factory()
        except Exception as problem:
            raise _blame_code(spec, "the factory", problem) from problem
    built = _describe_made(made, card)
    if options.weights in ("auto", "none"):
        return built
    found = find_weights(options, built.card.name, published=None)
    heads = recognise_family(built.module).class_heads
    return replace(built, weights=load_into(built.module, found, built.card.name, heads))


def import_own(spec: str) -> None:
    """Import the user's code for what it registers, such as data sets."""
    source, _ = _split_spec(spec)
    with _allow_imports(Path(source) if _is_file(source) else None):
        _import_named(spec, source, _is_file(source))


def _split_spec(spec: str) -> tuple[str, str]:
    source, _, name = spec.rpartition(":")
    if not source or not name:
        raise UsageError(f"model {spec!r} is not complete", f"expected {_FORM}")
    return source, name


def _is_file(source: str) -> bool:
    return source.endswith(".py") or "/" in source


def _accepts_argument(factory: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    named = parameters.get(name)
    return takes_any or (named is not None and named.kind is not inspect.Parameter.POSITIONAL_ONLY)


def _describe_made(made: Any, card: ModelCard) -> BuiltModel:
    from torch import nn

    if isinstance(made, BuiltModel):
        return made
    module, stages = made, None
    if isinstance(made, tuple) and len(made) == 2:
        module, stages = made
    if not isinstance(module, nn.Module):
        raise OwnCodeError(f"model {card.name}: the factory returned {name_kind(made)}", _RESULTS)
    if stages is None and isinstance(getattr(module, "stages", None), Mapping):
        stages = module.stages
    family, found, observers = recognise_parts(module)
    named = found if stages is None else _check_stages(stages, module, card.name)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    note = "" if family == UNKNOWN.name else f"recognised as {family}"
    return BuiltModel(
        module=module,
        card=replace(card, parameters=parameters, note=note),
        stages=named,
        observers=observers,
        weights=WeightsUsed("factory", card.name, _NOTE),
    )


def _check_stages(given: Any, module: nn.Module, spec: str) -> tuple[Stage, ...]:
    if not isinstance(given, Mapping) or not all(
        isinstance(text, str) for pair in given.items() for text in pair
    ):
        raise UsageError(
            f"model {spec}: stages are {name_kind(given)}", 'expected {"name": "module.path", ...}'
        )
    named = tuple(Stage(name, target) for name, target in given.items())
    for stage in named:
        if not has_target(module, stage.target):
            children = ", ".join(name for name, _ in module.named_children())
            raise UsageError(
                f"model {spec}: stage {stage.name!r} names {stage.target!r}, which the model has not",
                f"a module path, or a method as path.name(); top-level modules are: {children}",
            )
    return named


@contextmanager
def _allow_imports(file: Path | None) -> Iterator[None]:
    """Let the user's code import its neighbours, as it could if it were run as a script."""
    before = list(sys.path)
    sys.path[:0] = [str(file.resolve().parent)] if file is not None else [str(Path.cwd())]
    try:
        yield
    finally:
        sys.path[:] = before


def _import_named(spec: str, source: str, is_file: bool) -> ModuleType:
    """The user's module; whatever its code raises becomes an error with the place."""
    try:
        return _import_file(Path(source)) if is_file else importlib.import_module(source)
    except ModuleNotFoundError as problem:
        if not is_file and problem.name and (source == problem.name or source.startswith(f"{problem.name}.")):
            raise UsageError(
                f"model {spec}: there is no module {problem.name}",
                "run from the folder that holds the package, or name the file: path/to/file.py:factory",
            ) from problem
        raise _blame_code(spec, f"importing {source}", problem) from problem
    except SyntaxError as problem:
        where = f"{problem.filename}:{problem.lineno}"
        raise OwnCodeError(f"model {spec}: {where}: {problem.msg}", "correct the file") from problem
    except Exception as problem:
        raise _blame_code(spec, f"importing {source}", problem) from problem


def _blame_code(spec: str, doing: str, problem: Exception) -> OwnCodeError:
    """What the user's code raised, with its line, where one of theirs was running."""
    frame = find_user_frame(problem)
    place = f" (at {frame})" if frame else ""
    return OwnCodeError(
        f"model {spec}: {doing} raised {describe_error(problem)}{place}",
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
