"""From a name to a folder that can be opened: fetched, checked, unpacked, put where people expect it."""

from __future__ import annotations

import filecmp
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from detscope.data.contract import Progress, track_progress
from detscope.data.download.extract import extract_archive
from detscope.data.download.fetch import RemoteFile, fetch_file, recall_first_use, record_first_use
from detscope.data.download.folders import lock_path, report_write_errors, require_free_disk
from detscope.errors import InputError

# A data set may lie in a folder of another name, and COCO's images one folder deeper.
_OTHER_FOLDERS = {"coco": ("coco", ".", "COCO", "coco2017")}
_OTHER_PROOFS = {"train2017": ("images/train2017",), "val2017": ("images/val2017",)}


@dataclass(frozen=True)
class Archive:
    """One file of a publisher; `proof` is what lies below the data set's folder once it is unpacked."""

    url: str
    checksum: str
    size_bytes: int
    most_members: int  # files and folders, with room to spare: a mirror's archive may hold some more
    proof: str  # unpacked last, so that it is there when everything is
    folder: str  # below the root; the archive's members lie below it
    strip: str = ""  # leading folder of the members that `folder` stands for

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]

    def locate_at(self, mirror: str | None) -> RemoteFile:
        """The file at its publisher's (None), or in the folder of a mirror."""
        url = self.url if mirror is None else f"{mirror.rstrip('/')}/{self.name}"
        return RemoteFile(url, self.name, self.checksum, self.size_bytes)


@dataclass(frozen=True)
class Collection:
    """What `detscope data prepare NAME` brings, and how to use it afterwards."""

    name: str
    description: str
    archives: tuple[Archive, ...]
    use_as: str  # for --data
    licence: str


@dataclass(frozen=True)
class PreparedFolder:
    """Where a data set is, and what had to be done for it."""

    name: str
    folder: Path
    fetched: tuple[str, ...]  # archives that were brought
    found: tuple[str, ...]  # archives whose content was there


def prepare_collection(
    collection: Collection,
    root: Path,
    *,
    mirror: str | None = None,
    trust_mirror: bool = False,
    progress: Progress | None = None,
) -> PreparedFolder:
    """Bring a data set under `root` unless it is there; a killed one is gone on with.

    `mirror` replaces the publisher's address, up to the file name. With `trust_mirror` its files may
    differ from the publisher's (a part of a data set, say): then they are trusted on first use.
    """
    folder = _find_folder(collection, root)
    missing = [archive for archive in collection.archives if not _is_there(archive, folder)]
    found = tuple(archive.name for archive in collection.archives if archive not in missing)
    if missing:
        with report_write_errors(root):
            root.mkdir(parents=True, exist_ok=True)
        if not trust_mirror:
            parts = (root / "downloads" / f"{one.name}{end}" for one in missing for end in ("", ".part"))
            have_bytes = sum(path.stat().st_size for path in parts if path.is_file())
            sizes = [archive.size_bytes for archive in missing]
            # What is unpacked is removed at once: room for everything unpacked and the largest archive.
            need_bytes = max(0, sum(sizes) + max(sizes) - have_bytes)
            require_free_disk(root, need_bytes, f"preparing {collection.name}")
        for archive in missing:
            _bring_archive(archive, root, folder, mirror, trust_mirror, progress)
    return PreparedFolder(collection.name, folder, tuple(archive.name for archive in missing), found)


def find_prepared(collection: Collection, root: Path) -> Path | None:
    """The folder of a data set that is there as a whole."""
    folder = _find_folder(collection, root)
    return folder if all(_is_there(archive, folder) for archive in collection.archives) else None


def count_download_bytes(collection: Collection) -> int:
    """How much has to be fetched where nothing is there."""
    return sum(archive.size_bytes for archive in collection.archives)


def _find_folder(collection: Collection, root: Path) -> Path:
    """The usual folder, or another one that holds some of it already."""
    usual = collection.archives[0].folder
    for name in _OTHER_FOLDERS.get(usual, (usual,)):
        folder = root / name if name != "." else root
        if any(_is_there(archive, folder) for archive in collection.archives):
            return folder
    return root / usual


def _is_there(archive: Archive, folder: Path) -> bool:
    return any((folder / proof).exists() for proof in (archive.proof, *_OTHER_PROOFS.get(archive.proof, ())))


def _bring_archive(
    archive: Archive,
    root: Path,
    folder: Path,
    mirror: str | None,
    trust_mirror: bool,
    progress: Progress | None,
) -> None:
    downloads = root / "downloads"
    remote = archive.locate_at(mirror)
    if trust_mirror:
        remote = recall_first_use(replace(remote, checksum=None, size_bytes=None), downloads)
    staging = root / f".{archive.name}.unpacked"
    with report_write_errors(folder), lock_path(downloads / "prepare"):
        if _is_there(archive, folder):  # another process brought it meanwhile
            return
        if not staging.is_dir():
            path = fetch_file(remote, downloads, progress=progress)
            if trust_mirror:
                record_first_use(remote, path, downloads)
            extract_archive(path, staging, most_members=archive.most_members, progress=progress)
        _place_files(staging, archive, folder, progress)
        shutil.rmtree(staging)
        (downloads / archive.name).unlink(missing_ok=True)


def _place_files(staging: Path, archive: Archive, folder: Path, progress: Progress | None) -> None:
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
    for path in track_progress(files, len(files), f"placing {archive.name}", progress, every=100):
        _move_file(path, folder / path.relative_to(source))
    if proof.is_dir():
        _move_file(proof, folder / archive.proof)


def _move_file(path: Path, target: Path) -> None:
    """Move a file or a whole folder; a file that is there must be the same, and nothing is overwritten."""
    if target.exists():
        if target.is_dir() or not filecmp.cmp(path, target, shallow=False):
            raise InputError(f"{target} is there and differs", "move it away, or choose another --root")
        path.unlink()
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
