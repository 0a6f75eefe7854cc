"""`detscope mcp` as a process: it speaks the protocol alone on standard output, and ends quietly."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from mcp_client import server_command, server_environment

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    },
}


@pytest.fixture
def server(tmp_path: Path):
    """A server that has greeted."""
    process = subprocess.Popen(
        server_command(tmp_path / "runs"),
        cwd=tmp_path,
        env=server_environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    send(process, json.dumps(HELLO))
    assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "detscope"
    yield process
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


def send(process: subprocess.Popen[bytes], line: str) -> None:
    process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=900)
    return process.returncode, out, err


def test_a_closed_standard_input_ends_it(server):
    assert ended(server) == (0, b"", b"")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_it_while_it_waits_for_a_line(server, name):
    server.send_signal(getattr(signal, name))
    assert server.wait(timeout=900) == 0
    assert ended(server) == (0, b"", b"")


def test_what_is_no_message_is_answered_by_nothing_else_than_messages(server):
    send(server, "this is no JSON")
    send(server, json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
    send(server, json.dumps({"jsonrpc": "2.0", "id": 2, "method": "no/such"}))
    asked = {"name": "summary"}
    send(server, json.dumps({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": asked}))
    told: dict[int, dict] = {}
    while not {2, 3} <= set(told):
        message = json.loads(server.stdout.readline())
        told[message.get("id")] = message
    code, out, err = ended(server)
    assert (code, out) == (0, b"")
    assert told[2]["error"]["message"] == "Method not found"
    assert told[3]["result"]["isError"]
    assert b"Traceback" not in err


def test_a_client_that_goes_without_a_word_is_not_complained_about(server):
    server.stdout.close()
    send(server, json.dumps({"jsonrpc": "2.0", "id": 2, "method": "ping"}))
    server.stdin.close()
    assert server.wait(timeout=900) == 0
    assert server.stderr.read() == b""


def test_without_a_client_to_read_it_ends_at_once(tmp_path):
    done = subprocess.run(
        server_command(tmp_path),
        env=server_environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
