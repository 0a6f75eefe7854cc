"""Where a VOC data set has its files, and which of them belong to a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from detscope.data.annotations.values import read_lines
from detscope.data.images.files import SUFFIXES
from detscope.data.registry import Split
from detscope.data.splits import held_out_note, part_of
from detscope.errors import InputError, UsageError

_BESIDE = {"train": ("train",), "val": ("valid", "val", "test")}


@dataclass(frozen=True)
class VocItem:
    """An annotation file, where its image should be, and its picture of masks if there is one."""

    annotation: Path
    images: Path
    mask: Path | None = None

    def image_path(self, file_name: str) -> Path:
        """The image beside the name of the annotation file, or the one that the annotation names."""
        usual = self.images / f"{self.annotation.stem}.jpg"
        if usual.is_file():
            return usual
        named = self.images / Path(file_name).name if file_name else usual
        if named.is_file():
            return named
        others = (self.images / f"{self.annotation.stem}{suffix}" for suffix in sorted(SUFFIXES))
        return next((path for path in others if path.is_file()), usual)


@dataclass(frozen=True)
class ChosenItems:
    """The items of a split, those of the others (for their class names), and what a person should know."""

    items: tuple[VocItem, ...]
    others: tuple[VocItem, ...] = ()
    notes: tuple[str, ...] = ()


def voc_folders(folder: Path) -> list[Path]:
    """Folders with `Annotations/`: the given one, or the years below it or below VOCdevkit."""
    if (folder / "Annotations").is_dir():
        return [folder]
    for place in (folder / "VOCdevkit", folder):
        years = sorted(path.parent for path in place.glob("*/Annotations") if path.is_dir())
        if years:
            return years
    return []


def is_voc(folder: Path) -> bool:
    """Whether a folder holds VOC annotations, in VOC's layout or beside the images."""
    if voc_folders(folder):
        return True
    places = [folder, *(folder / name for names in _BESIDE.values() for name in names)]
    return any(next(place.glob("*.xml"), None) is not None for place in places)


def items_of_split(folder: Path, split: Split, held_out: float, *, masks: bool) -> ChosenItems:
    """What to train on or to evaluate on."""
    years = voc_folders(folder)
    if not years:
        return _beside_images(folder, split, held_out)
    kind = "Segmentation" if masks else "Main"
    if masks and not any((year / "SegmentationObject").is_dir() for year in years):
        raise UsageError(f"{folder} has no masks, which this model needs", "choose another data set or model")
    wanted, other = _lists(years, kind, split)
    if not wanted:
        return _divided(years, kind, split, held_out)
    chosen = {(year, stem): _item(year, stem, masks) for year, stem in wanted}
    rest = [_item(year, stem, masks) for year, stem in other if (year, stem) not in chosen]
    return ChosenItems(tuple(chosen.values()), tuple(rest))


def _lists(years: Sequence[Path], kind: str, split: Split) -> tuple[list[tuple[Path, str]], ...]:
    """(year, name) of the split and of the other one, by the rules at the top of voc.py."""
    tested = [item for year in years for item in _listed(year, kind, "test")]
    tested = [(year, stem) for year, stem in tested if (year / "Annotations" / f"{stem}.xml").is_file()]
    if tested:
        trained = [
            item
            for year in years
            for item in _listed(year, kind, "trainval") or _listed(year, kind, "train", "val")
        ]
    else:
        trained = [item for year in years for item in _listed(year, kind, "train")]
        tested = [item for year in years for item in _listed(year, kind, "val")]
    if not (trained and tested):
        return [], []
    return (trained, tested) if split == "train" else (tested, trained)


def _divided(years: Sequence[Path], kind: str, split: Split, held_out: float) -> ChosenItems:
    """No lists for both splits: what there is, divided by us."""
    everything = [item for year in years for item in _listed(year, kind, "trainval", "train", "val", "test")]
    if not everything and kind == "Main":
        everything = [
            (year, path.stem) for year in years for path in sorted((year / "Annotations").glob("*.xml"))
        ]
    if not everything:
        raise InputError(f"{years[0]}: no annotations found", "look into its folder Annotations")
    names = {f"{year.name}/{stem}": (year, stem) for year, stem in everything}
    chosen = part_of(list(names), split, held_out)
    items = {name: _item(*names[name], kind == "Segmentation") for name in names}
    return ChosenItems(
        tuple(items[name] for name in chosen),
        tuple(items[name] for name in names if name not in set(chosen)),
        (held_out_note(held_out),),
    )


def _beside_images(folder: Path, split: Split, held_out: float) -> ChosenItems:
    def found(names: Sequence[str]) -> list[VocItem]:
        return [
            VocItem(path, path.parent) for name in names for path in sorted((folder / name).glob("*.xml"))
        ]

    own, other = found(_BESIDE[split]), found(_BESIDE["val" if split == "train" else "train"])
    if own and other:
        return ChosenItems(tuple(own), tuple(other))
    items = {item.annotation.stem: item for item in (*found(["."]), *own, *other)}
    chosen = part_of(list(items), split, held_out)
    return ChosenItems(
        tuple(items[name] for name in chosen),
        tuple(items[name] for name in items if name not in set(chosen)),
        (held_out_note(held_out),),
    )


def _listed(year: Path, kind: str, *names: str) -> list[tuple[Path, str]]:
    found: dict[tuple[Path, str], None] = {}
    for name in names:
        path = year / "ImageSets" / kind / f"{name}.txt"
        if path.is_file():
            words = (line.split()[0] for line in read_lines(path))
            found.update({(year, Path(word).name): None for word in words})
    return list(found)


def _item(year: Path, stem: str, masks: bool) -> VocItem:
    images = year / "JPEGImages"
    return VocItem(
        year / "Annotations" / f"{stem}.xml",
        images if images.is_dir() else year / "images" if (year / "images").is_dir() else year,
        year / "SegmentationObject" / f"{stem}.png" if masks else None,
    )
