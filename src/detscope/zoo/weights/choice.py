"""Which weights a model gets: `auto`, `coco`, `none` (random ones) or a file; and putting them in."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from detscope.errors import InputError, MachineError, UsageError
from detscope.zoo.contract import BuildOptions, WeightsUsed
from detscope.zoo.weights.download import (
    DownloadFailed,
    Published,
    cache_folder,
    check_hash,
    download_weights,
)
from detscope.zoo.weights.files import read_state_dict

if TYPE_CHECKING:
    from torch import Tensor, nn

_KEYWORDS = ("auto", "coco", "none")
_LOAD_DIFFERS = "proposal and NMS load differ from those of a trained model"


@dataclass(frozen=True)
class FoundWeights:
    """Weights read and checked, before there is a model to put them in; `state` None means random."""

    kind: str
    source: str
    note: str
    state: dict[str, Tensor] | None = None


@contextmanager
def seed_weights(seed: int) -> Iterator[None]:
    """Random weights in the block depend on `seed` alone; the caller's random state is as before afterwards.

    Models are made on the CPU, so only the CPU's generator is touched: seeding through
    `torch.manual_seed` would change every CUDA generator of the caller as well.
    """
    import torch

    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


def check_choice(weights: str, model_name: str, has_published: bool) -> None:
    """Refuse a choice that cannot be met, before anything is read or downloaded."""
    if weights == "coco" and not has_published:
        raise UsageError(
            f"there are no published COCO weights for {model_name}", "use --weights none, or a file"
        )
    if weights in _KEYWORDS or Path(weights).is_file():
        return
    if Path(weights).is_dir():
        raise UsageError(f"--weights {weights} is a folder", "name a file in it")
    close = difflib.get_close_matches(weights, _KEYWORDS, n=1)
    hint = f"did you mean {close[0]}?" if close else "use auto, coco, none or the path of a file"
    raise UsageError(f"--weights {weights}: no such file", hint)


def find_weights(
    options: BuildOptions, model_name: str, published: Published | None, base_url: str | None = None
) -> FoundWeights:
    """Read the weights that `options.weights` asks for; `base_url` fetches from another server."""
    choice = options.weights
    check_choice(choice, model_name, published is not None)
    if choice == "none":
        return _describe_random("as asked")
    if choice not in _KEYWORDS:
        path = Path(choice)
        return FoundWeights("file", str(path), f"weights from {path.name}", read_state_dict(path))
    if published is None:
        return _describe_random(f"{model_name} has no published weights")
    try:
        at_server = published.at_server(base_url)
        cached = cache_folder(options.cache_dir) / at_server.file_name
        if cached.is_file():
            check_hash(cached, at_server)
        else:
            cached = download_weights(at_server, cached.parent)
        name = at_server.file_name
        return FoundWeights("coco", name, f"COCO weights {name}", read_state_dict(cached))
    except DownloadFailed as problem:
        if choice == "coco":
            raise MachineError(
                f"COCO weights {published.file_name} cannot be had: {problem}",
                "use --weights none, or the path of a file you have",
            ) from problem
        return _describe_random(str(problem))


def load_into(
    module: nn.Module, found: FoundWeights, model_name: str, class_heads: Sequence[str] = ()
) -> WeightsUsed:
    """Put the weights in; only layers under `class_heads` may differ in shape, and then stay new."""
    if found.state is None:
        return WeightsUsed(found.kind, found.source, found.note)
    own = module.state_dict()
    misfits = [key for key in own if key in found.state and own[key].shape != found.state[key].shape]
    wrong = [key for key in misfits if not key.startswith(tuple(class_heads))]
    if wrong:
        key = wrong[0]
        raise InputError(
            f"weights {found.source} do not fit {model_name}: {key} is {_format_shape(found.state[key])}, "
            f"the model has {_format_shape(own[key])} ({len(wrong)} such tensors)",
            "choose the model these weights were made for",
        )
    fitting = {key: value for key, value in found.state.items() if key not in set(misfits)}
    missing, unexpected = module.load_state_dict(fitting, strict=False)
    _check_complete(found, model_name, [key for key in missing if key not in set(misfits)], unexpected)
    replaced = tuple(dict.fromkeys(key.rpartition(".")[0] for key in misfits))
    note = found.note
    if replaced:
        note += f"; newly made for another class count: {', '.join(replaced)}"
    return WeightsUsed(found.kind, found.source, note, replaced)


def _check_complete(
    found: FoundWeights, model_name: str, missing: Sequence[str], unexpected: Sequence[str]
) -> None:
    # counters of batch norm came late to the file format; without them they start from 0
    absent = [key for key in missing if not key.endswith("num_batches_tracked")]
    foreign = [key for key in unexpected if not key.endswith("num_batches_tracked")]
    if not absent and not foreign:
        return
    parts = []
    if absent:
        parts.append(f"{len(absent)} tensors are missing (first: {absent[0]})")
    if foreign:
        parts.append(f"{len(foreign)} are unknown (first: {foreign[0]})")
    raise InputError(
        f"weights {found.source} do not fit {model_name}: {', '.join(parts)}",
        "choose the model these weights were made for",
    )


def _describe_random(why: str) -> FoundWeights:
    return FoundWeights("random", "", f"random weights ({why}): {_LOAD_DIFFERS}")


def _format_shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a single value"
