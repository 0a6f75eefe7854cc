"""Packages that come with an extra of this package, not with its base, and what is said where one is missing.

The base reads, imports, compares and reports; whatever trains, measures, draws or predicts brings its own.
"""

from __future__ import annotations

from importlib.util import find_spec

from detscope.errors import MachineError

_PACKAGES = {
    "torch": ("torch", "torchvision", "effdet", "timm", "safetensors", "torch_pruning"),
    "predict": ("sklearn", "scipy", "skops"),
    "pictures": ("matplotlib",),
    "tensorboard": ("tensorboard",),
    "ray": ("ray",),
    "families": ("transformers",),
    "mcp": ("mcp",),
}
EXTRA_OF = {package: extra for extra, packages in _PACKAGES.items() for package in packages}
_PREDICTING = ("predict", "fit", "score")  # verbs that need both: networks are traced, devices are fitted


class MissingExtraError(MachineError):
    """A package is missing that an extra brings."""

    def __init__(self, package: str, *, verb: str = "") -> None:
        extras = [EXTRA_OF[package]]
        if verb in _PREDICTING and "predict" not in extras and not has_package("sklearn"):
            extras.append("predict")
        super().__init__(
            f"{verb or 'this'} needs {package}, which is not installed", install_hint(",".join(extras))
        )
        self.package = package

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str]]:
        return type(self), (self.package,)


def has_package(package: str) -> bool:
    """Whether it could be imported here; it is not."""
    return find_spec(package) is not None


def require_package(package: str) -> None:
    """Say that it is missing before any work is done, instead of when it is imported."""
    if not has_package(package):
        raise MissingExtraError(package)


def install_hint(extra: str) -> str:
    """What to type for it."""
    return f"install it: pip install 'detscope[{extra}]'"


def missing_extra(error: BaseException) -> MissingExtraError | None:
    """What an import's failure is in our words, if an extra brings what was not found."""
    if isinstance(error, MissingExtraError):
        return error
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRA_OF:
        return MissingExtraError(error.name)
    return None
