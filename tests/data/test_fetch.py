from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from data_file_server import FileServer, serving

from detscope.data.download import extract as folders
from detscope.data.download import prepare as fetch_module
from detscope.data.download.prepare import RemoteFile, fetch_file
from detscope.errors import InputError, MachineError, UsageError

CONTENT = os.urandom(3_000_000)
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as running:
        running.files["/a.bin"] = CONTENT
        yield running


def remote(server: FileServer, checksum: str | None = SHA256, size: int | None = len(CONTENT)) -> RemoteFile:
    return RemoteFile(f"{server.url}/a.bin", "a.bin", checksum, size)


def no_pause(_seconds: float) -> None:
    pass


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_file_arrives_whole_with_progress(server: FileServer, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = fetch_file(remote(server), tmp_path, progress=lambda *args: seen.append(args))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("downloading a.bin", len(CONTENT), len(CONTENT))
    assert left_in(tmp_path) == ["a.bin"]


def test_a_file_that_is_there_and_right_is_not_fetched_again(server: FileServer, tmp_path: Path) -> None:
    fetch_file(remote(server), tmp_path)
    fetch_file(remote(server), tmp_path)
    assert len(server.requests) == 1


def test_a_file_that_is_there_but_damaged_is_fetched_again(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(CONTENT[:-1] + b"x")
    assert fetch_file(remote(server), tmp_path).read_bytes() == CONTENT


def test_a_broken_connection_is_resumed_where_it_broke(server: FileServer, tmp_path: Path) -> None:
    server.break_after_bytes = [1_000_000, 500_000]
    assert fetch_file(remote(server), tmp_path, pause=no_pause).read_bytes() == CONTENT
    assert [request.get("Range") for request in server.requests] == [
        None,
        "bytes=1000000-",
        "bytes=1500000-",
    ]


def test_a_server_without_ranges_is_read_from_the_beginning(server: FileServer, tmp_path: Path) -> None:
    server.ranges = False
    server.break_after_bytes = [1_000_000]
    assert fetch_file(remote(server), tmp_path, pause=no_pause).read_bytes() == CONTENT


def test_a_file_that_changed_meanwhile_is_not_mixed(server: FileServer, tmp_path: Path) -> None:
    server.break_after_bytes = [1000, 0, 0, 0, 0]
    with pytest.raises(MachineError):
        fetch_file(remote(server, None, None), tmp_path, pause=no_pause)
    assert (tmp_path / "a.bin.part").stat().st_size == 1000
    server.files["/a.bin"], server.etag = b"new" * 1000, '"2"'
    assert fetch_file(remote(server, None, None), tmp_path).read_bytes() == b"new" * 1000


def test_the_next_run_goes_on_with_what_an_earlier_one_has(server: FileServer, tmp_path: Path) -> None:
    server.break_after_bytes = [2_000_000, 0, 0, 0, 0]
    with pytest.raises(MachineError, match="2000000 bytes so far"):
        fetch_file(remote(server), tmp_path, pause=no_pause)
    assert fetch_file(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.requests[-1]["Range"] == "bytes=2000000-"


def test_a_partial_file_that_is_already_whole_is_used(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(CONTENT)
    assert fetch_file(remote(server, size=None), tmp_path).read_bytes() == CONTENT


def test_a_partial_file_longer_than_the_file_is_dropped(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(CONTENT + b"more")
    assert fetch_file(remote(server), tmp_path, pause=no_pause).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("served", "word"),
    [
        (CONTENT[:1_000_000], "1000000 bytes"),
        (b"", "is empty"),
        (b"<!DOCTYPE html><html>moved</html>", "HTML page"),
        (CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]), "not the file"),
        (CONTENT + b"more", "not the file"),
    ],
    ids=["truncated", "empty", "html", "wrong checksum", "too long"],
)
def test_wrong_content_is_named_with_both_checksums_and_removed(
    server: FileServer, tmp_path: Path, served: bytes, word: str
) -> None:
    server.files["/a.bin"] = served
    with pytest.raises(InputError) as caught:
        fetch_file(remote(server), tmp_path)
    actual = hashlib.sha256(served).hexdigest()
    assert "a.bin" in caught.value.message
    assert SHA256.removeprefix("sha256:") in caught.value.message
    assert actual in caught.value.message
    assert word in caught.value.message
    assert "\n" not in caught.value.message
    assert left_in(tmp_path) == []
    server.files["/a.bin"] = CONTENT
    assert fetch_file(remote(server), tmp_path).read_bytes() == CONTENT


def test_an_html_page_is_refused_also_without_a_checksum(server: FileServer, tmp_path: Path) -> None:
    server.files["/a.bin"] = b"\n<html><body>please log in</body></html>"
    with pytest.raises(InputError, match="HTML page"):
        fetch_file(remote(server, None, None), tmp_path)
    assert left_in(tmp_path) == []


def test_md5_sums_are_understood(server: FileServer, tmp_path: Path) -> None:
    fetch_file(remote(server, f"md5:{hashlib.md5(CONTENT).hexdigest()}"), tmp_path)
    with pytest.raises(InputError, match="md5 expected 00"):
        fetch_file(remote(server, "md5:00"), tmp_path)


def test_a_missing_file_on_the_server_is_said_at_once(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="404"):
        fetch_file(RemoteFile(f"{server.url}/b.bin", "b.bin"), tmp_path)
    assert len(server.requests) == 1


def test_a_busy_server_is_asked_again(server: FileServer, tmp_path: Path) -> None:
    server.statuses = [503, 503]
    assert fetch_file(remote(server), tmp_path, pause=no_pause).read_bytes() == CONTENT


def test_without_a_connection_it_says_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/a.bin"
        with pytest.raises(MachineError) as caught:
            fetch_file(RemoteFile(url, "a.bin"), tmp_path, pause=no_pause)
    assert "refused" in caught.value.message
    assert str(tmp_path / "a.bin") in caught.value.hint


def test_a_disk_that_is_too_small_is_said_before_the_download(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="MB are free"):
        fetch_file(remote(server, size=10**15), tmp_path)
    assert server.requests == []
    assert left_in(tmp_path) == []


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(MachineError, match="disk full"), folders.report_write_errors(tmp_path):
        Path("/dev/full").write_bytes(b"x")


def test_only_web_addresses_are_fetched(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only http"):
        fetch_file(RemoteFile("file:///etc/hostname", "a"), tmp_path)


def test_large_files_are_not_held_in_memory() -> None:
    assert fetch_module.CHUNK_BYTES <= 2**20
