"""A real HTTP server on this machine that can break connections, ignore ranges and lie."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from detscope.data.download import prepare as fetch

PATIENCE_S = 600.0  # a server that is held up is asked once, however long it takes


@dataclass
class FileServer:
    files: dict[str, bytes] = field(default_factory=dict)
    break_after_bytes: list[int] = field(default_factory=list)  # one per connection, then none breaks
    statuses: list[int] = field(default_factory=list)  # one per connection, then 200 or 206
    ranges: bool = True
    etag: str = '"1"'
    requests: list[dict[str, str]] = field(default_factory=list)
    url: str = ""


def _handler(server: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requests.append(dict(self.headers))
            if server.statuses:
                return self.send_error(server.statuses.pop(0))
            content = server.files.get(self.path)
            if content is None:
                return self.send_error(404)
            start = self._start()
            if start >= len(content) and start:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return None
            return self._send(content, start)

        def _start(self) -> int:
            asked = self.headers.get("Range")
            changed = self.headers.get("If-Range", server.etag) != server.etag
            if asked is None or not server.ranges or changed:
                return 0
            return int(asked.removeprefix("bytes=").removesuffix("-"))

        def _send(self, content: bytes, start: int) -> None:
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.send_header("ETag", server.etag)
            self.end_headers()
            stop = start + server.break_after_bytes.pop(0) if server.break_after_bytes else len(content)
            self.wfile.write(content[start:stop])
            self.close_connection = True

        def log_message(self, *_arguments: object) -> None:
            pass

    return Handler


@contextmanager
def serving() -> Iterator[FileServer]:
    server = FileServer()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fetch, "TIMEOUT_S", PATIENCE_S)
            yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
