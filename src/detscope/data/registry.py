"""Which data sets exist and how one is opened by name. Needs no torch until a data set is opened."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from detscope.config.schema import DataSettings
from detscope.data.contract import DetectionDataset, Progress
from detscope.errors import UsageError

Split = Literal["train", "val"]


@dataclass(frozen=True)
class OpenRequest:
    """Everything an opener may want to know."""

    settings: DataSettings
    need_masks: bool = False
    need_keypoints: bool = False
    seed: int = 0
    split: Split = "train"
    progress: Progress | None = None


@dataclass(frozen=True)
class DatasetEntry:
    """A data set that can be opened by name; `opener` is "module:function", imported when used."""

    name: str
    description: str
    opener: str


_ENTRIES: dict[str, DatasetEntry] = {}


def register(name: str, description: str, opener: str) -> None:
    """Make a data set known: `opener` names a function that takes an OpenRequest."""
    _ENTRIES[name] = DatasetEntry(name, description, opener)


register(
    "synthetic", "generated shapes with boxes, masks and keypoints", "detscope.data.synthetic:open_synthetic"
)
register("pets", "Oxford-IIIT Pet: 37 breeds, boxes from the trimaps", "detscope.data.pets:open_pets")


def list_datasets() -> tuple[DatasetEntry, ...]:
    """Every data set that can be opened by name."""
    return tuple(_ENTRIES.values())


def open_dataset(
    settings: DataSettings,
    *,
    need_masks: bool = False,
    need_keypoints: bool = False,
    seed: int = 0,
    split: Split = "train",
    progress: Progress | None = None,
) -> DetectionDataset:
    """Open the data set that `settings` names, fetching or generating it where it is not there yet."""
    entry = _ENTRIES.get(settings.name)
    if entry is None:
        raise _unknown(settings.name)
    request = OpenRequest(settings, need_masks, need_keypoints, seed, split, progress)
    return _load(entry.opener)(request)


def _load(opener: str) -> Callable[[OpenRequest], DetectionDataset]:
    module, _, function = opener.partition(":")
    loaded: Callable[[OpenRequest], DetectionDataset] = getattr(importlib.import_module(module), function)
    return loaded


def _unknown(name: str) -> UsageError:
    close = difflib.get_close_matches(name.lower(), _ENTRIES, n=1)
    suggestion = f"did you mean {close[0]!r}? " if close else ""
    return UsageError(f"unknown data set {name!r}", f"{suggestion}there are: {', '.join(_ENTRIES)}")
