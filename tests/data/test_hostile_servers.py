"""Servers that send on and on, to elsewhere, or answer garbage; passwords in addresses."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from detscope.data.download.prepare import RECORD, RemoteFile, fetch_file, record_first_use
from detscope.errors import DetscopeError
from detscope.web import hide_secrets
from detscope.zoo.weights import DownloadFailed, PublishedWeights, download_weights

SECRET = "pass\u0301word".encode("ascii", "ignore").decode() + "-1234"


@contextmanager
def answering(answer: Callable[[str], bytes]) -> Iterator[tuple[str, list[str]]]:
    """A server whose every answer is these bytes; gives host:port and what was asked."""
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    asked.append(connection.recv(65536).decode("latin-1"))
                    connection.sendall(answer(place))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield place, asked
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def redirect(target: str) -> Callable[[str], bytes]:
    return lambda place: (
        f"HTTP/1.1 302 Found\r\nLocation: {target.format(place=place)}\r\nContent-Length: 0\r\n\r\n".encode()
    )


ANSWERS = {
    "a loop": redirect("http://{place}/a.bin"),
    "to ftp": redirect(f"ftp://someone:{SECRET}@{{place}}/a.bin"),
    "to a file": redirect("file:///etc/passwd"),
    "to nowhere": redirect("http://[::1/a.bin"),
    "garbage": lambda _: b"\x1b[31m\x00\xff\xfenonsense\r\n\r\n",
    "a wrong length": lambda _: "HTTP/1.1 200 OK\r\nContent-Length: \u00b2\r\n\r\nabc".encode("latin-1"),
    "steering words": lambda _: b"HTTP/1.1 404 \x1b]0;owned\x07\r\nContent-Length: 0\r\n\r\n",
    "nothing": lambda _: b"",
    "too many headers": lambda _: b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 300 + b"\r\n",
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_hostile_answer_is_one_printable_line_without_the_password(kind, tmp_path):
    with answering(ANSWERS[kind]) as (place, _):
        url = f"http://someone:{SECRET}@{place}/a-0123456789.bin"
        words = []
        try:
            fetch_file(RemoteFile(url, "a.bin", "sha256:" + "0" * 64), tmp_path, pause=lambda _: None)
        except DetscopeError as error:
            assert error.exit_code in (2, 3, 4)
            words += [error.message, error.hint]
        else:
            pytest.fail("it was taken")
        with pytest.raises((DownloadFailed, DetscopeError)) as failed:
            download_weights(PublishedWeights(url), tmp_path / "weights")
        words.append(str(failed.value))
    for text in words:
        assert text.isprintable(), text
        assert SECRET not in text
        assert "someone" not in text


def test_a_password_goes_to_its_server_and_into_no_record(tmp_path):
    with answering(lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc") as (place, asked):
        remote = RemoteFile(f"http://someone:{SECRET}@{place}/a.bin", "a.bin")
        path = fetch_file(remote, tmp_path)
        record_first_use(remote, path, tmp_path)
    told = base64.b64encode(f"someone:{SECRET}".encode()).decode()
    assert f"Authorization: Basic {told}" in asked[0]
    assert SECRET not in asked[0]
    assert place in (tmp_path / RECORD).read_text()
    assert all(SECRET not in file.read_text() for file in tmp_path.iterdir())


def test_a_password_is_not_told_to_whom_the_server_sends_on(tmp_path):
    with (
        answering(lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc") as (other, asked),
        answering(redirect(f"http://{other}/b.bin")) as (place, _),
    ):
        fetch_file(RemoteFile(f"http://someone:{SECRET}@{place}/a.bin", "a.bin"), tmp_path)
    assert "Authorization" not in asked[0]


@pytest.mark.parametrize(
    "url", ["http://someone:pw@", "http://[::1", "http://a:port/x", "http://ä/x", "ftp://a/x", "//a"]
)
def test_what_is_no_address_is_refused_at_once(url, tmp_path):
    with pytest.raises(DetscopeError) as refused:
        fetch_file(RemoteFile(url, "a.bin"), Path(tmp_path))
    assert refused.value.exit_code == 2
    assert "pw@" not in refused.value.message
    if "[" not in url:
        with pytest.raises(DownloadFailed):
            download_weights(PublishedWeights(f"{url}/a-0123456789.bin"), tmp_path)


def test_names_and_passwords_are_cut_out_of_any_sentence():
    said = "cannot open 'https://a:b@c.d/e' or http://x@y/z\x1b[0m"
    assert hide_secrets(said) == "cannot open 'https://c.d/e' or http://y/z\\x1b[0m"
