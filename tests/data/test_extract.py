from __future__ import annotations

import io
import random
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detscope.data.download.extract import extract_archive
from detscope.errors import InputError


def make_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def tar_member(name: str, **attributes: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in attributes.items():
        setattr(info, key, value)
    return info


def everything_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.name.endswith(".lock")}


GOOD = (tar_member("pets/a.txt"), b"hello")

HOSTILE_TARS: dict[str, tuple[tarfile.TarInfo, bytes]] = {
    "parent folder": (tar_member("../evil.txt"), b"x"),
    "parent folder in the middle": (tar_member("pets/../../evil.txt"), b"x"),
    "absolute name": (tar_member("/tmp/detscope-evil.txt"), b"x"),
    "backslashes": (tar_member("..\\evil.txt"), b"x"),
    "drive letter": (tar_member("C:evil.txt"), b"x"),
    "folder outside": (tar_member("../evil", type=tarfile.DIRTYPE), b""),
    "symlink outside": (tar_member("pets/link", type=tarfile.SYMTYPE, linkname="../../secret"), b""),
    "symlink absolute": (tar_member("pets/link", type=tarfile.SYMTYPE, linkname="/etc"), b""),
    "hardlink outside": (tar_member("pets/link", type=tarfile.LNKTYPE, linkname="../secret"), b""),
    "fifo": (tar_member("pets/fifo", type=tarfile.FIFOTYPE), b""),
    "character device": (tar_member("pets/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3), b""),
    "block device": (tar_member("pets/disk", type=tarfile.BLKTYPE), b""),
    "setuid": (tar_member("pets/tool", mode=0o4755), b"x"),
    "setgid": (tar_member("pets/tool", mode=0o2755), b"x"),
    "the same name twice": (tar_member("pets/a.txt"), b"again"),
    "a file used as a folder": (tar_member("pets/a.txt/b"), b"x"),
    "a name too long for the disk": (tar_member("pets/" + "n" * 300), b"x"),
}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_good_tar_is_unpacked(tmp_path: Path, mode: str) -> None:
    archive = make_tar(tmp_path / "good.tar", GOOD, (tar_member("./b", mode=0o777), b"b"), mode=mode)
    target = extract_archive(archive, tmp_path / "out")
    assert (target / "pets" / "a.txt").read_bytes() == b"hello"
    assert not stat.S_IMODE((target / "b").stat().st_mode) & 0o111


def test_a_good_zip_is_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "good.zip", "w") as archive:
        archive.writestr("annotations/", "")
        archive.writestr("annotations/a.json", "{}")
    target = extract_archive(tmp_path / "good.zip", tmp_path / "out")
    assert (target / "annotations" / "a.json").read_text() == "{}"


@pytest.mark.parametrize("member", HOSTILE_TARS.values(), ids=HOSTILE_TARS.keys())
def test_a_hostile_tar_leaves_nothing_anywhere(tmp_path: Path, member: tuple[tarfile.TarInfo, bytes]) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    archive = make_tar(inside / "bad.tar.gz", GOOD, member)
    with pytest.raises(InputError) as caught:
        extract_archive(archive, inside / "out")
    assert caught.value.message.startswith("bad.tar.gz: ")
    assert "\n" not in caught.value.message
    assert everything_below(tmp_path) == {"inside", "inside/bad.tar.gz"}
    assert not Path("/tmp/detscope-evil.txt").exists()


def test_a_symlink_cannot_prepare_the_way_for_a_later_member(tmp_path: Path) -> None:
    link = tar_member("pets", type=tarfile.SYMTYPE, linkname=str(tmp_path))
    archive = make_tar(tmp_path / "bad.tar.gz", (link, b""), (tar_member("pets/evil.txt"), b"x"))
    with pytest.raises(InputError, match="link"):
        extract_archive(archive, tmp_path / "out")
    assert not (tmp_path / "evil.txt").exists()


def link_in_zip(archive: zipfile.ZipFile) -> None:
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive.writestr(info, "/etc/passwd")


def setuid_in_zip(archive: zipfile.ZipFile) -> None:
    info = zipfile.ZipInfo("tool")
    info.external_attr = (stat.S_IFREG | stat.S_ISUID | 0o755) << 16
    archive.writestr(info, "x")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda archive: archive.writestr("../evil.txt", "x"),
        lambda archive: archive.writestr("/tmp/detscope-evil.txt", "x"),
        lambda archive: archive.writestr("a/../../evil.txt", "x"),
        link_in_zip,
        setuid_in_zip,
    ],
    ids=["parent folder", "absolute name", "parent folder in the middle", "symlink", "setuid"],
)
def test_a_hostile_zip_leaves_nothing_anywhere(
    tmp_path: Path, spoil: Callable[[zipfile.ZipFile], None]
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    with zipfile.ZipFile(inside / "bad.zip", "w") as archive:
        archive.writestr("good.txt", "hello")
        spoil(archive)
    with pytest.raises(InputError, match=r"bad\.zip"):
        extract_archive(inside / "bad.zip", inside / "out")
    assert everything_below(tmp_path) == {"inside", "inside/bad.zip"}
    assert not Path("/tmp/detscope-evil.txt").exists()


def test_fifty_megabytes_of_zeros_in_a_small_zip_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(50_000_000))
    with pytest.raises(InputError, match="unpack to more than the limit of"):
        extract_archive(tmp_path / "bomb.zip", tmp_path / "out")
    assert everything_below(tmp_path) == {"bomb.zip"}


def test_a_tar_bomb_is_stopped_on_the_way(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "bomb.tar.gz", (tar_member("zeros"), bytes(50_000_000)))
    with pytest.raises(InputError, match="unpack to more than the limit of"):
        extract_archive(archive, tmp_path / "out")
    assert everything_below(tmp_path) == {"bomb.tar.gz"}


def test_a_giant_header_is_not_read_into_memory(tmp_path: Path) -> None:
    header = tar_member("header", type=tarfile.XHDTYPE)
    archive = make_tar(tmp_path / "bomb.tar", (header, bytes(20_000_000)), mode="w")
    with pytest.raises(InputError, match="header of unreasonable size"):
        extract_archive(archive, tmp_path / "out")


def test_a_sparse_file_of_many_terabytes_is_refused(tmp_path: Path) -> None:
    plain = make_tar(tmp_path / "plain.tar", (tar_member("sparse"), b""), mode="w").read_bytes()
    header = bytearray(plain[:512])
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[483:495] = b"77777777777\0"
    header[148:156] = b"        "
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    archive = tmp_path / "sparse.tar"
    archive.write_bytes(bytes(header) + plain[512:])
    with pytest.raises(InputError, match="plain file"):
        extract_archive(archive, tmp_path / "out")


def test_the_number_of_members_is_limited(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "many.tar", *((tar_member(f"{i}"), b"") for i in range(20)))
    with pytest.raises(InputError, match="more files than the limit of 10"):
        extract_archive(archive, tmp_path / "out", most_members=10)


def test_a_small_archive_of_thousands_of_empty_files_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "empty.tar.gz", *((tar_member(f"{i}"), b"") for i in range(20_000)))
    allowed = archive.stat().st_size // 12
    assert allowed < 20_000
    with pytest.raises(InputError, match=f"more files than the limit of {allowed:,}") as caught:
        extract_archive(archive, tmp_path / "out")
    assert "DETSCOPE_LIMIT_ARCHIVE_MEMBER_BYTES" in caught.value.hint
    assert everything_below(tmp_path) == {"empty.tar.gz"}


def test_thousands_of_label_files_are_unpacked(tmp_path: Path) -> None:
    draw = random.Random(0)
    lines = (f"3 {draw.random():.4f} {draw.random():.4f} {draw.random():.4f} 0.1\n" for _ in range(2000))
    labels = ((tar_member(f"{i}.txt"), line.encode()) for i, line in enumerate(lines))
    archive = make_tar(tmp_path / "labels.tar.gz", *labels)
    assert len(everything_below(extract_archive(archive, tmp_path / "out"))) == 2000


@pytest.mark.parametrize("cut", [0, 10, 200, -30])
def test_a_truncated_or_foreign_archive_is_one_line(tmp_path: Path, cut: int) -> None:
    whole = make_tar(tmp_path / "whole.tar.gz", (tar_member("a"), bytes(range(256)) * 40)).read_bytes()
    archive = tmp_path / "cut.tar.gz"
    archive.write_bytes(whole[:cut])
    with pytest.raises(InputError, match=r"cut\.tar\.gz: cannot be unpacked"):
        extract_archive(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_html_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "page.zip").write_text("<html>" + "x" * 2000)
    with pytest.raises(InputError, match="cannot be unpacked"):
        extract_archive(tmp_path / "page.zip", tmp_path / "out")


def test_a_folder_that_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    extract_archive(make_tar(tmp_path / "good.tar", GOOD), tmp_path / "out")
    assert everything_below(tmp_path / "out") == {"mine"}


@settings(max_examples=60, deadline=None)
@given(name=st.lists(st.sampled_from(["..", ".", "", "a", "b.txt", "\\", "~", " "]), min_size=1, max_size=5))
def test_no_member_name_leads_outside(tmp_path_factory: pytest.TempPathFactory, name: list[str]) -> None:
    outer = tmp_path_factory.mktemp("names")
    inside = outer / "1" / "2" / "3"
    inside.mkdir(parents=True)
    with zipfile.ZipFile(inside / "a.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("/".join(name)), "x")
    try:
        extract_archive(inside / "a.zip", inside / "out")
    except InputError:
        assert not (inside / "out").exists()
    outside = {path for path in outer.rglob("*") if not path.is_relative_to(inside)}
    assert outside == {outer / "1", outer / "1" / "2"}
