"""Which weights a model gets: `auto`, `coco`, `none` (random ones) or a file; and putting them in.

A file may be anything: no code of it is ever run, and what is wrong with it is named. Published weights are
checked against the hash in their name and never half-written; fetched by our own code because publishers
give only the first digits of a hash, which pooch cannot check, and torch.hub has no timeout.
"""

from __future__ import annotations

import difflib
import hashlib
import http.client
import itertools
import logging
import os
import pickle
import re
import socket
import tempfile
import threading
import urllib.error
import urllib.parse
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from detscope.errors import DetscopeError, InputError, MachineError, UsageError
from detscope.web import check_address, hide_secrets, open_url
from detscope.zoo.contract import BuildOptions, WeightsUsed

if TYPE_CHECKING:
    from torch import Tensor, nn

_NESTED_UNDER = ("model", "state_dict", "model_state_dict")
_RETRY_HINT = "save it again with torch.save(model.state_dict(), FILE) or as .safetensors"

CONNECT_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 30.0
_PIECE_BYTES = 1 << 20
_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.[a-z]+$")

_log = logging.getLogger(__name__)

_KEYWORDS = ("auto", "coco", "none")
_LOAD_DIFFERS = "proposal and NMS load differ from those of a trained model"


def compute_sha256(path: Path) -> str:
    """Checksum of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """The state dict in a .safetensors or torch file; every problem is an InputError that names the file."""
    with path.open("rb") as file:
        head = file.read(512)
    if not head:
        raise InputError(f"weights file {path} is empty (0 bytes)", "copy or download it again")
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise InputError(
            f"weights file {path} is an HTML page, not weights{_checksum_text(path)}",
            "the server answered with a page; download the file itself",
        )
    if path.suffix != ".safetensors":
        return _plain_state_dict(_read_torch(path), path)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return _plain_state_dict(load_file(path), path)
    except SafetensorError as problem:
        raise InputError(
            f"weights file {path} cannot be read as safetensors: {problem}{_checksum_text(path)}",
            "the file is damaged or not in this format; copy or download it again",
        ) from problem


def _read_torch(path: Path) -> object:
    import torch

    try:
        with warnings.catch_warnings():
            # torch warns before it raises on TorchScript archives; the error below says it all
            warnings.simplefilter("ignore", UserWarning)
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as problem:
        if "global" in str(problem).lower():
            raise InputError(
                f"weights file {path} refused: it would run code or load classes ({_first_global(problem)})",
                f"only plain tensors are loaded, never code; {_RETRY_HINT}",
            ) from problem
        raise _report_damage(path, problem) from problem
    except Exception as problem:  # torch raises many kinds on damaged files; each is bad input
        raise _report_damage(path, problem) from problem


def _report_damage(path: Path, problem: Exception) -> InputError:
    # torch wraps the cause in advice on how to load unsafely, which is not wanted here
    _, _, cause = str(problem).rpartition("WeightsUnpickler error: ")
    first_line = (cause.strip().splitlines() or [""])[0][:100]
    reason = f"{type(problem).__name__}: {first_line}"
    return InputError(
        f"weights file {path} is damaged or no weights file: {reason}{_checksum_text(path)}",
        f"copy or download it again, or {_RETRY_HINT}",
    )


def _first_global(problem: Exception) -> str:
    words = str(problem).replace("\n", " ").split()
    for word, following in itertools.pairwise(words):
        if word.lower() == "global" and "." in following:
            return following.strip(".,`'\"")
    return "an object that is no tensor"


def _checksum_text(path: Path) -> str:
    return f" ({path.stat().st_size} bytes, sha256 {compute_sha256(path)})"


def _plain_state_dict(loaded: object, path: Path) -> dict[str, Tensor]:
    import torch

    found = loaded
    if isinstance(loaded, Mapping):
        found = next((loaded[key] for key in _NESTED_UNDER if isinstance(loaded.get(key), Mapping)), loaded)
    if not isinstance(found, Mapping) or not found:
        raise InputError(
            f"weights file {path} holds {type(loaded).__name__}, not a state dict",
            f"expected tensors by name, at the top or under {', '.join(_NESTED_UNDER)}",
        )
    strangers = [str(key) for key, value in found.items() if not isinstance(value, torch.Tensor)]
    if strangers:
        raise InputError(
            f"weights file {path}: {len(strangers)} entries are no tensors, the first is {strangers[0]!r}",
            f"expected tensors by name, at the top or under {', '.join(_NESTED_UNDER)}",
        )
    return {str(key).removeprefix("module."): value for key, value in found.items()}


class DownloadFailed(Exception):
    """The publisher could not be reached, or did not deliver; says why in one line."""


@dataclass(frozen=True)
class PublishedWeights:
    """Weights somebody offers for download."""

    url: str

    @property
    def file_name(self) -> str:
        """Last part of the address."""
        return Path(urllib.parse.urlsplit(self.url).path).name

    @property
    def hash_prefix(self) -> str | None:
        """The first digits of the sha256, as publishers write them into the file's name."""
        found = _HASH_IN_NAME.search(self.file_name)
        return found.group(1) if found else None

    def at_server(self, base_url: str | None) -> PublishedWeights:
        """The same file on another server."""
        return self if base_url is None else PublishedWeights(f"{base_url.rstrip('/')}/{self.file_name}")


def cache_folder(cache_dir: str | None) -> Path:
    """Where downloads are kept: the given folder, or torch hub's."""
    if cache_dir is not None:
        return Path(cache_dir)
    import torch

    return Path(torch.hub.get_dir()) / "checkpoints"


def check_hash(path: Path, published: PublishedWeights, shown_as: str | None = None) -> None:
    """Remove a damaged download and raise InputError with expected and actual checksum."""
    expected = published.hash_prefix
    if expected is None:
        return
    actual = compute_sha256(path)
    if actual.startswith(expected):
        return
    size_bytes = path.stat().st_size
    path.unlink()
    raise InputError(
        f"downloaded weights {shown_as or path} are damaged ({size_bytes} bytes): "
        f"expected sha256 {expected}..., actual {actual}",
        "the file was removed; run again to fetch it anew, or use --weights none",
    )


def download_weights(published: PublishedWeights, folder: Path) -> Path:
    """Fetch into `folder` and check; raises DownloadFailed, or InputError when what came is damaged."""
    target = folder / published.file_name
    _log.info("downloading %s", published.file_name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, partial_name = tempfile.mkstemp(dir=folder, prefix=published.file_name, suffix=".part")
    except OSError as problem:
        raise DownloadFailed(f"cannot write to {folder}: {problem.strerror}") from problem
    partial = Path(partial_name)
    try:
        with os.fdopen(handle, "wb") as file:
            _fetch_into(file, published.url)
        check_hash(partial, published, shown_as=published.file_name)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _fetch_into(file: IO[bytes], url: str) -> None:
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        check_address(url)
        _resolve_in_time(host)
        with open_url(url, CONNECT_TIMEOUT_S) as answer:
            # the short timeout is for connecting; a slow server that did answer gets more patience
            connection = getattr(getattr(getattr(answer, "fp", None), "raw", None), "_sock", None)
            if isinstance(connection, socket.socket):
                connection.settimeout(_READ_TIMEOUT_S)
            while piece := answer.read(_PIECE_BYTES):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except DetscopeError as problem:
        raise DownloadFailed(problem.message) from problem
    except urllib.error.HTTPError as problem:
        problem.close()  # it is the open answer of the server
        raise DownloadFailed(f"{host} answered {problem.code} {hide_secrets(problem.reason)}") from problem
    except urllib.error.URLError as problem:
        raise DownloadFailed(f"{host} cannot be reached: {hide_secrets(problem.reason)}") from problem
    except (OSError, http.client.HTTPException) as problem:
        words = hide_secrets(problem) or type(problem).__name__
        raise DownloadFailed(f"download from {host} broke off: {words}") from problem


def _resolve_in_time(host: str) -> None:
    """Name resolution obeys no socket timeout and can take half a minute without a network."""
    problems: list[OSError] = []

    def resolve() -> None:
        try:
            socket.getaddrinfo(host, None)
        except OSError as problem:
            problems.append(problem)

    resolver = threading.Thread(target=resolve, daemon=True)
    resolver.start()
    resolver.join(CONNECT_TIMEOUT_S)
    if resolver.is_alive():
        raise DownloadFailed(f"{host} cannot be reached: no answer from name resolution")
    if problems:
        raise DownloadFailed(f"{host} cannot be reached: {problems[0].strerror or problems[0]}")


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
    options: BuildOptions, model_name: str, published: PublishedWeights | None, base_url: str | None = None
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
