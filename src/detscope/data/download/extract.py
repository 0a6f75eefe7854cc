"""Unpacking of archives that came over the network and are not trusted.

Only plain files and folders come out, only below the target, with our own permissions. Links,
devices, fifos, setuid files, names that leave the folder, and archives that unpack to far more
than they hold are refused, and then nothing of the archive stays.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import re
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, cast

from detscope.data.contract import Progress
from detscope.data.download.folders import build_folder_once, require_free_disk
from detscope.errors import InputError
from detscope.limits import limit, raise_hint

_CHUNK_BYTES = 2**20
# Headers of an archive are read in one piece; none that is honest comes near this size.
_MAX_READ_BYTES = 16 * 2**20
_SMALL_BYTES = 10 * 2**20  # below this much unpacked the ratio is no matter
_FEW_MEMBERS = 1000  # so many are no matter, however small the archive
_ENCRYPTED = 0x1
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
_DRIVE = re.compile("[A-Za-z]:")


@dataclass(frozen=True)
class ExtractLimits:
    """How much an archive may unpack to; what is not given is as the table of limits has it."""

    members: int = field(default_factory=lambda: limit("archive_members"))
    total_bytes: int = field(default_factory=lambda: limit("archive_bytes"))

    def bytes_for(self, archive_bytes: int) -> int:
        """The most that an archive of this size may unpack to."""
        return min(self.total_bytes, max(_SMALL_BYTES, limit("archive_ratio") * archive_bytes))

    def members_for(self, archive_bytes: int) -> int:
        """The most members of an archive of this size: each is worth some of its bytes."""
        return min(self.members, max(_FEW_MEMBERS, archive_bytes // limit("archive_member_bytes")))


def extract_archive(
    archive: Path,
    target: Path,
    *,
    limits: ExtractLimits | None = None,
    progress: Progress | None = None,
) -> Path:
    """Unpack a tar (plain, gz, bz2, xz) or zip into the new folder `target`, wholly or not at all."""
    limits = limits or ExtractLimits()

    def build(partial: Path) -> None:
        writer = _Writer(archive, partial, limits, progress)
        with _one_line_reasons(archive):
            unpack = _unpack_zip if _starts_with(archive, *_ZIP_STARTS) else _unpack_tar
            unpack(archive, writer)

    build_folder_once(target, build, Path.is_dir, replace_incomplete=False)
    return target


@contextmanager
def _one_line_reasons(archive: Path) -> Iterator[None]:
    damaged = (tarfile.TarError, zipfile.BadZipFile, EOFError, lzma.LZMAError, gzip.BadGzipFile)
    try:
        yield
    except (*damaged, ValueError, NotImplementedError, FileExistsError, NotADirectoryError) as error:
        raise _refused(archive, f"cannot be unpacked: {str(error).partition(chr(10))[0]}") from error
    except OSError as error:
        if error.errno not in (None, errno.ENAMETOOLONG):
            raise  # the disk; the decompressors' own errors have no number
        raise _refused(archive, f"cannot be unpacked: {error}") from error
    except Exception as error:
        if type(error).__module__ == "zlib":
            raise _refused(archive, f"cannot be unpacked: {error}") from error
        raise


def _refused(archive: Path, reason: str, why: str = "") -> InputError:
    hint = f"nothing was unpacked; remove {archive} to fetch it again"
    return InputError(f"{archive.name}: {reason}", f"{why}; {hint}" if why else hint)


class _Writer:
    """Writes members below one folder and keeps count of them."""

    def __init__(self, archive: Path, folder: Path, limits: ExtractLimits, progress: Progress | None) -> None:
        self.archive = archive
        self.limit_bytes = limits.bytes_for(archive.stat().st_size)
        self._folder = folder
        self._most_members = limits.members_for(archive.stat().st_size)
        self._progress = progress
        self._written_bytes = 0
        self._members = 0

    def refuse(self, member: str, reason: str) -> InputError:
        """The error that ends the unpacking."""
        return _refused(self.archive, f"member {member!r} {reason}")

    def expect(self, unpacked_bytes: int, members: int = 0) -> None:
        """Judge what the archive itself announces, before anything is written."""
        self._judge_size(unpacked_bytes)
        self._judge_members(members)
        require_free_disk(self._folder, unpacked_bytes, f"unpacking {self.archive.name}")

    def folder(self, name: str) -> None:
        self._count()
        self._place(name).mkdir(parents=True, exist_ok=True)

    def file(self, name: str, content: IO[bytes]) -> None:
        self._count()
        path = self._place(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:  # "x": a name that comes twice is refused
            while chunk := content.read(_CHUNK_BYTES):
                self._written_bytes += len(chunk)
                self._judge_size(self._written_bytes)
                file.write(chunk)

    def _place(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or _DRIVE.match(name):
            raise self.refuse(name, "would be written outside the target folder")
        return self._folder.joinpath(*parts)

    def _count(self) -> None:
        self._members += 1
        self._judge_members(self._members)
        if self._progress is not None and self._members % 50 == 0:
            self._progress(f"unpacking {self.archive.name}", self._members, None)

    def _judge_members(self, members: int) -> None:
        if members <= self._most_members:
            return
        packed_bytes = self.archive.stat().st_size
        raise _refused(
            self.archive,
            f"holds more files than the limit of {self._most_members:,} for its {packed_bytes / 1e3:.0f} kB",
            raise_hint("archive_member_bytes"),
        )

    def _judge_size(self, unpacked_bytes: int) -> None:
        if unpacked_bytes > self.limit_bytes:
            raise too_large(self.archive, self.limit_bytes)


def too_large(archive: Path, limit_bytes: int) -> InputError:
    """The error for an archive that unpacks to more than it may."""
    packed_bytes = archive.stat().st_size
    return _refused(
        archive,
        f"{packed_bytes / 1e3:.0f} kB unpack to more than the limit of {limit_bytes / 1e6:.0f} MB",
        raise_hint("archive_ratio"),
    )


def _unpack_zip(archive: Path, writer: _Writer) -> None:
    with zipfile.ZipFile(archive) as opened:
        members = opened.infolist()
        writer.expect(sum(member.file_size for member in members), len(members))
        for member in members:
            _judge_mode(writer, member.orig_filename, member.external_attr >> 16)
            if member.flag_bits & _ENCRYPTED:
                raise writer.refuse(member.filename, "is encrypted")
            if member.orig_filename.endswith("/"):
                writer.folder(member.orig_filename)
            else:
                with opened.open(member) as content:
                    writer.file(member.orig_filename, content)


def _judge_mode(writer: _Writer, name: str, mode: int) -> None:
    kind = stat.S_IFMT(mode)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise writer.refuse(name, "is a link or a device")
    if kind != stat.S_IFDIR and mode & (stat.S_ISUID | stat.S_ISGID):
        raise writer.refuse(name, "has a setuid or setgid bit")


def _unpack_tar(archive: Path, writer: _Writer) -> None:
    writer.expect(archive.stat().st_size)  # a tar does not announce its size; it is at least this
    with _decompressed(archive) as stream:
        limited = cast(IO[bytes], _LimitedStream(stream, archive, writer.limit_bytes))
        with tarfile.open(fileobj=limited, mode="r:") as opened:
            for member in opened:
                _unpack_tar_member(opened, member, writer)
                opened.members = []  # type: ignore[attr-defined]  # a million need not stay in memory


def _unpack_tar_member(opened: tarfile.TarFile, member: tarfile.TarInfo, writer: _Writer) -> None:
    if member.isdir():
        return writer.folder(member.name)
    if member.issym() or member.islnk():
        raise writer.refuse(member.name, "is a link")
    if not member.isreg() or member.issparse():
        raise writer.refuse(member.name, "is neither a plain file nor a folder")
    _judge_mode(writer, member.name, member.mode & 0o7777)
    content = opened.extractfile(member)
    if content is None:
        raise writer.refuse(member.name, "has no content")
    with content:
        return writer.file(member.name, content)


def _starts_with(archive: Path, *starts: bytes) -> bool:
    with archive.open("rb") as file:
        return file.read(8).startswith(starts)


def _decompressed(archive: Path) -> IO[bytes]:
    if _starts_with(archive, b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(archive))
    if _starts_with(archive, b"BZh"):
        return cast(IO[bytes], bz2.open(archive))
    if _starts_with(archive, b"\xfd7zXZ\0"):
        return cast(IO[bytes], lzma.open(archive))
    return archive.open("rb")


class _LimitedStream:
    """The unpacked bytes of a tar, up to a limit: also headers and skipped parts cost memory or time."""

    def __init__(self, stream: IO[bytes], archive: Path, limit_bytes: int) -> None:
        self._stream = stream
        self._archive = archive
        # Each member takes a header and padding beside its content.
        self._limit_bytes = 2 * limit_bytes

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_READ_BYTES:
            raise _refused(self._archive, "has a header of unreasonable size")
        self._judge(self._stream.tell() + size)
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 0:
            self._judge(offset)
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def _judge(self, position: int) -> None:
        if position > self._limit_bytes:
            raise too_large(self._archive, self._limit_bytes)
