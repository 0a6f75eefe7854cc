"""From a name to a folder that can be opened: fetched, checked, unpacked, put where people expect it."""

from __future__ import annotations

import filecmp
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from detscope.data.catalog import Archive, Collection
from detscope.data.contract import Progress
from detscope.data.download.extract import ExtractLimits, extract_archive
from detscope.data.download.fetch import RemoteFile, fetch
from detscope.data.download.folders import locked, require_free_disk, writing_to
from detscope.data.first_use import remember, remembered
from detscope.errors import InputError

# A data set may lie in a folder of another name, and COCO's images one folder deeper.
_OTHER_FOLDERS = {"coco": ("coco", ".", "COCO", "coco2017")}
_OTHER_PROOFS = {"train2017": ("images/train2017",), "val2017": ("images/val2017",)}


@dataclass(frozen=True)
class Prepared:
    """Where a data set is, and what had to be done for it."""

    name: str
    folder: Path
    fetched: tuple[str, ...]  # archives that were brought
    found: tuple[str, ...]  # archives whose content was there


def prepare(
    collection: Collection,
    root: Path,
    *,
    mirror: str | None = None,
    trust_mirror: bool = False,
    progress: Progress | None = None,
) -> Prepared:
    """Bring a data set under `root` unless it is there; a killed one is gone on with.

    `mirror` replaces the publisher's address, up to the file name. With `trust_mirror` its files may
    differ from the publisher's (a part of a data set, say): then they are trusted on first use.
    """
    folder = _folder_of(collection, root)
    missing = [archive for archive in collection.archives if not _is_there(archive, folder)]
    found = tuple(archive.name for archive in collection.archives if archive not in missing)
    if not missing:
        return Prepared(collection.name, folder, (), found)
    with writing_to(root):
        root.mkdir(parents=True, exist_ok=True)
    if not trust_mirror:
        _require_room(missing, root, collection.name)
    for archive in missing:
        _bring(archive, root, folder, mirror, trust_mirror, progress)
    return Prepared(collection.name, folder, tuple(archive.name for archive in missing), found)


def is_prepared(collection: Collection, root: Path) -> Path | None:
    """The folder of a data set that is there as a whole."""
    folder = _folder_of(collection, root)
    return folder if all(_is_there(archive, folder) for archive in collection.archives) else None


def download_bytes(collection: Collection) -> int:
    """How much has to be fetched where nothing is there."""
    return sum(archive.size_bytes for archive in collection.archives)


def _folder_of(collection: Collection, root: Path) -> Path:
    """The usual folder, or another one that holds some of it already."""
    usual = collection.archives[0].folder
    for name in _OTHER_FOLDERS.get(usual, (usual,)):
        folder = root / name if name != "." else root
        if any(_is_there(archive, folder) for archive in collection.archives):
            return folder
    return root / usual


def _is_there(archive: Archive, folder: Path) -> bool:
    return any((folder / proof).exists() for proof in (archive.proof, *_OTHER_PROOFS.get(archive.proof, ())))


def _require_room(missing: list[Archive], root: Path, name: str) -> None:
    downloads = _downloads(root)
    have_bytes = sum(
        path.stat().st_size
        for archive in missing
        for path in (downloads / archive.name, downloads / f"{archive.name}.part")
        if path.is_file()
    )
    packed_bytes = sum(archive.size_bytes for archive in missing)
    # What is unpacked is removed at once: room for everything unpacked and the largest archive.
    largest = max(archive.size_bytes for archive in missing)
    require_free_disk(root, max(0, packed_bytes + largest - have_bytes), f"preparing {name}")


def _bring(
    archive: Archive,
    root: Path,
    folder: Path,
    mirror: str | None,
    trust_mirror: bool,
    progress: Progress | None,
) -> None:
    downloads = _downloads(root)
    url = archive.url if mirror is None else f"{mirror.rstrip('/')}/{archive.name}"
    remote = RemoteFile(url, archive.name, archive.checksum, archive.size_bytes)
    if trust_mirror:
        remote = remembered(replace(remote, checksum=None, size_bytes=None), downloads)
    staging = root / f".{archive.name}.unpacked"
    with writing_to(folder), locked(downloads / "prepare"):
        if _is_there(archive, folder):  # another process brought it meanwhile
            return
        if not staging.is_dir():
            path = fetch(remote, downloads, progress=progress)
            if trust_mirror:
                remember(remote, path, downloads)
            limits = ExtractLimits(members=archive.most_members)
            extract_archive(path, staging, limits=limits, progress=progress)
        _put(staging, archive, folder, progress)
        shutil.rmtree(staging)
        (downloads / archive.name).unlink(missing_ok=True)


def _downloads(root: Path) -> Path:
    return root / "downloads"


def _put(staging: Path, archive: Archive, folder: Path, progress: Progress | None) -> None:
    """Move what was unpacked to its place; the proof of completeness goes last."""
    source = staging / archive.strip if archive.strip else staging
    proof = source / archive.proof
    if not proof.exists():
        raise InputError(
            f"{archive.name}: unpacks without {archive.strip}/{archive.proof}".replace("//", "/"),
            f"it is another archive than expected; look into {staging} and remove it to fetch anew",
        )
    files = [path for path in sorted(source.rglob("*")) if not path.is_dir()]
    if proof.is_dir() and not (folder / archive.proof).exists():
        files = [path for path in files if not path.is_relative_to(proof)]
    elif proof in files:
        files.remove(proof)
        files.append(proof)
    for done, path in enumerate(files, start=1):
        _move(path, folder / path.relative_to(source))
        if progress is not None and (done % 100 == 0 or done == len(files)):
            progress(f"placing {archive.name}", done, len(files))
    if proof.is_dir():
        _move(proof, folder / archive.proof)


def _move(path: Path, target: Path) -> None:
    """Move a file or a whole folder; a file that is there must be the same, and nothing is overwritten."""
    if target.exists():
        if target.is_dir() or not filecmp.cmp(path, target, shallow=False):
            raise InputError(f"{target} is there and differs", "move it away, or choose another --root")
        path.unlink()
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
