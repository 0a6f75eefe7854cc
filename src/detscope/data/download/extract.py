"""Unpacking of archives that came over the network and are not trusted, into folders that are made once.

Only plain files and folders come out, only below the target, with our own permissions. Links,
devices, fifos, setuid files, names that leave the folder, and archives that unpack to far more
than they hold are refused, and then nothing of the archive stays. A folder is there whole or not at all,
also when two processes make it at the same moment.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from detscope.data.contract import Progress
from detscope.errors import InputError, MachineError
from detscope.limits import raise_hint, read_limit

# Room that is left free on the disk beside what is about to be written.
DISK_RESERVE_BYTES = 64 * 2**20

_CHUNK_BYTES = 2**20
# Headers of an archive are read in one piece; none that is honest comes near this size.
_MAX_READ_BYTES = 16 * 2**20
_SMALL_BYTES = 10 * 2**20  # below this much unpacked the ratio is no matter
_FEW_MEMBERS = 1000  # so many are no matter, however small the archive
_ENCRYPTED = 0x1
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
_DRIVE = re.compile("[A-Za-z]:")
_REFUSED = (
    *(tarfile.TarError, zipfile.BadZipFile, EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error),
    *(ValueError, NotImplementedError, FileExistsError, NotADirectoryError),
)


def build_folder_once(
    target: Path,
    build: Callable[[Path], None],
    is_complete: Callable[[Path], bool],
    *,
    replace_incomplete: bool,
) -> None:
    """Make `target` by `build(partial folder)` and one rename, unless it is complete.

    A second process waits for the first and then finds the folder. The lock ends with its process,
    and what a killed one left behind is removed by the next.
    """
    if is_complete(target):
        return
    if target.exists() and not replace_incomplete:
        raise InputError(f"{target} is there but not complete", "move it away, or choose another data.root")
    with report_write_errors(target), lock_path(target):
        if is_complete(target):
            return
        partial = target.with_name(f".{target.name}.partial")
        _remove_path(partial)
        try:
            partial.mkdir()
            build(partial)
            _remove_path(target)
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextmanager
def lock_path(path: Path) -> Iterator[None]:
    """Hold the lock that belongs to `path`; it is gone when this process is gone."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        yield


@contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write into one line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise MachineError(
                f"disk full while writing {path}", "free some space, or choose another data.root"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            raise MachineError(
                f"cannot write {path}: {error.strerror}", "choose a data.root that can be written"
            ) from error
        raise


def require_free_disk(folder: Path, need_bytes: int, what: str) -> None:
    """Say that the disk is too small before anything is written."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < need_bytes + DISK_RESERVE_BYTES:
        raise MachineError(
            f"{what} needs {need_bytes / 1e6:.0f} MB in {folder}, {free_bytes / 1e6:.0f} MB are free",
            "free some space, or choose another data.root",
        )


def _remove_path(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def extract_archive(
    archive: Path, target: Path, *, most_members: int | None = None, progress: Progress | None = None
) -> Path:
    """Unpack a tar (plain, gz, bz2, xz) or zip into the new folder `target`, wholly or not at all.

    `most_members` is for an archive that is known; without it the table of limits counts.
    """

    def unpack_into(partial: Path) -> None:
        writer = _ArchiveWriter(archive, partial, most_members or read_limit("archive_members"), progress)
        try:
            (_unpack_zip if _starts_with(archive, *_ZIP_STARTS) else _unpack_tar)(archive, writer)
        except _REFUSED as error:
            reason = str(error).partition("\n")[0]
            raise _refuse_archive(archive, f"cannot be unpacked: {reason}") from error
        except OSError as error:
            if error.errno not in (None, errno.ENAMETOOLONG):
                raise  # the disk; the decompressors' own errors have no number
            raise _refuse_archive(archive, f"cannot be unpacked: {error}") from error

    build_folder_once(target, unpack_into, Path.is_dir, replace_incomplete=False)
    return target


def _refuse_archive(archive: Path, reason: str, why: str = "") -> InputError:
    hint = f"nothing was unpacked; remove {archive} to fetch it again"
    return InputError(f"{archive.name}: {reason}", f"{why}; {hint}" if why else hint)


class _ArchiveWriter:
    """Writes members below one folder and keeps count of them: an archive unpacks to so much at most."""

    def __init__(self, archive: Path, folder: Path, most_members: int, progress: Progress | None) -> None:
        self.archive = archive
        self._packed_bytes = archive.stat().st_size
        largest = max(_SMALL_BYTES, read_limit("archive_ratio") * self._packed_bytes)
        self.limit_bytes = min(read_limit("archive_bytes"), largest)
        # each member is worth some bytes of the archive
        self._most_members = min(
            most_members, max(_FEW_MEMBERS, self._packed_bytes // read_limit("archive_member_bytes"))
        )
        self._folder = folder
        self._progress = progress
        self._written_bytes = 0
        self._members = 0

    def refuse_member(self, member: str, reason: str) -> InputError:
        """The error that ends the unpacking."""
        return _refuse_archive(self.archive, f"member {member!r} {reason}")

    def judge_announced(self, unpacked_bytes: int, members: int = 0) -> None:
        """Judge what the archive itself announces, before anything is written."""
        self.judge_bytes(unpacked_bytes, self.limit_bytes)
        self._judge_members(members)
        require_free_disk(self._folder, unpacked_bytes, f"unpacking {self.archive.name}")

    def make_folder(self, name: str) -> None:
        """A member that is a folder."""
        self._place_member(name).mkdir(parents=True, exist_ok=True)

    def write_file(self, name: str, content: IO[bytes]) -> None:
        """A member that is a file."""
        path = self._place_member(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:  # "x": a name that comes twice is refused
            while chunk := content.read(_CHUNK_BYTES):
                self._written_bytes += len(chunk)
                self.judge_bytes(self._written_bytes, self.limit_bytes)
                file.write(chunk)

    def judge_bytes(self, unpacked_bytes: int, most_bytes: int) -> None:
        """Refuse an archive that unpacks to more than it may."""
        if unpacked_bytes > most_bytes:
            packed = f"{self._packed_bytes / 1e3:.0f} kB"
            reason = f"{packed} unpack to more than the limit of {most_bytes / 1e6:.0f} MB"
            raise _refuse_archive(self.archive, reason, raise_hint("archive_ratio"))

    def _judge_members(self, members: int) -> None:
        if members > self._most_members:
            packed = f"{self._packed_bytes / 1e3:.0f} kB"
            reason = f"holds more files than the limit of {self._most_members:,} for its {packed}"
            raise _refuse_archive(self.archive, reason, raise_hint("archive_member_bytes"))

    def _place_member(self, name: str) -> Path:
        self._members += 1
        self._judge_members(self._members)
        if self._progress is not None and self._members % 50 == 0:
            self._progress(f"unpacking {self.archive.name}", self._members, None)
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or _DRIVE.match(name):
            raise self.refuse_member(name, "would be written outside the target folder")
        return self._folder.joinpath(*parts)


def _unpack_zip(archive: Path, writer: _ArchiveWriter) -> None:
    with zipfile.ZipFile(archive) as opened:
        members = opened.infolist()
        writer.judge_announced(sum(member.file_size for member in members), len(members))
        for member in members:
            _judge_mode(writer, member.orig_filename, member.external_attr >> 16)
            if member.flag_bits & _ENCRYPTED:
                raise writer.refuse_member(member.filename, "is encrypted")
            if member.orig_filename.endswith("/"):
                writer.make_folder(member.orig_filename)
            else:
                with opened.open(member) as content:
                    writer.write_file(member.orig_filename, content)


def _judge_mode(writer: _ArchiveWriter, name: str, mode: int) -> None:
    kind = stat.S_IFMT(mode)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise writer.refuse_member(name, "is a link or a device")
    if kind != stat.S_IFDIR and mode & (stat.S_ISUID | stat.S_ISGID):
        raise writer.refuse_member(name, "has a setuid or setgid bit")


def _unpack_tar(archive: Path, writer: _ArchiveWriter) -> None:
    writer.judge_announced(archive.stat().st_size)  # a tar does not announce its size; it is at least this
    packed: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
    opener = next((opener for start, opener in packed.items() if _starts_with(archive, start)), Path.open)
    with opener(archive, "rb") as stream:
        limited = cast(IO[bytes], _LimitedStream(stream, writer))
        with tarfile.open(fileobj=limited, mode="r:") as opened:
            for member in opened:
                _unpack_tar_member(opened, member, writer)
                opened.members = []  # type: ignore[attr-defined]  # a million need not stay in memory


def _unpack_tar_member(opened: tarfile.TarFile, member: tarfile.TarInfo, writer: _ArchiveWriter) -> None:
    if member.isdir():
        return writer.make_folder(member.name)
    if member.issym() or member.islnk():
        raise writer.refuse_member(member.name, "is a link")
    if not member.isreg() or member.issparse():
        raise writer.refuse_member(member.name, "is neither a plain file nor a folder")
    _judge_mode(writer, member.name, member.mode & 0o7777)
    content = opened.extractfile(member)
    if content is None:
        raise writer.refuse_member(member.name, "has no content")
    with content:
        return writer.write_file(member.name, content)


def _starts_with(archive: Path, *starts: bytes) -> bool:
    with archive.open("rb") as file:
        return file.read(8).startswith(starts)


class _LimitedStream:
    """The unpacked bytes of a tar, up to a limit: also headers and skipped parts cost memory or time."""

    def __init__(self, stream: IO[bytes], writer: _ArchiveWriter) -> None:
        self._stream = stream
        self._writer = writer

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_READ_BYTES:
            raise _refuse_archive(self._writer.archive, "has a header of unreasonable size")
        self._judge_position(self._stream.tell() + size)
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 0:
            self._judge_position(offset)
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readable(self) -> bool:
        return True

    seekable = readable

    def _judge_position(self, position: int) -> None:
        # Each member takes a header and padding beside its content.
        self._writer.judge_bytes(position, 2 * self._writer.limit_bytes)
