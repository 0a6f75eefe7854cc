"""Which data sets exist and how one is opened by name. Needs no torch until a data set is opened."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from detscope.config.schema import DataSettings
from detscope.data.contract import DetectionDataset, Progress
from detscope.errors import UsageError

if TYPE_CHECKING:
    from detscope.data.annotations.records import ReadOptions
    from detscope.data.loading.views import Augmentation

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
    checking: bool = False  # read everything, stop at nothing; images are looked at by others

    def read_options(self) -> ReadOptions:
        """What is wanted of annotations; the number of images is left to the opener."""
        from detscope.data.annotations.records import ReadOptions

        return ReadOptions(
            self.need_masks,
            self.need_keypoints,
            skip_bad=self.checking or self.settings.on_bad_data == "skip",
            judge_masks=self.checking,
            inspect_images=not self.checking,
        )

    def augmentation(self) -> Augmentation | None:
        """What training draws anew for every image; an evaluation sees images as they are."""
        from detscope.data.loading.views import Augmentation

        settings = self.settings
        if self.split != "train" or not (settings.flip or settings.scales):
            return None
        return Augmentation(self.seed, settings.flip, tuple(settings.scales), settings.max_size)


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
    "synthetic", "generated shapes with boxes, masks and keypoints", "detscope.data.formats.synthetic:open_synthetic"
)
register("pets", "Oxford-IIIT Pet: 37 breeds, boxes from the trimaps", "detscope.data.formats.pets:open_pets")
register("voc", "PASCAL VOC 2007 and 2012: 20 classes", "detscope.data.formats.voc:open_voc")
register("coco", "COCO 2017: 80 classes, masks, keypoints of people", "detscope.data.formats.coco:open_coco")

_OWN_FOLDER = DatasetEntry("DIR", "a folder of your own", "detscope.data.formats.own:open_folder")


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
    """Open the data set that `settings` names, fetching or generating it where that is quick."""
    return open_request(OpenRequest(settings, need_masks, need_keypoints, seed, split, progress))


def open_request(request: OpenRequest) -> DetectionDataset:
    """Open what a request names: a registered data set, or a folder recognised by its content."""
    entry = _ENTRIES.get(request.settings.name)
    if entry is None:
        if not Path(request.settings.name).exists():
            raise _unknown(request.settings.name)
        entry = _OWN_FOLDER
    return _load(entry.opener)(request)


def _load(opener: str) -> Callable[[OpenRequest], DetectionDataset]:
    module, _, function = opener.partition(":")
    loaded: Callable[[OpenRequest], DetectionDataset] = getattr(importlib.import_module(module), function)
    return loaded


def _unknown(name: str) -> UsageError:
    close = difflib.get_close_matches(name.lower(), _ENTRIES, n=1)
    suggestion = f"did you mean {close[0]!r}? " if close else ""
    known = f"{', '.join(_ENTRIES)}, or a folder of your own"
    return UsageError(f"unknown data set {name!r}", f"{suggestion}there are: {known}")
