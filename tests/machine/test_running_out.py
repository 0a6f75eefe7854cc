"""Errors of libraries that do not say why: out of memory only where the process really had none left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from detscope.machine.limits import host_memory_ran_out, least_addresses_left_bytes

# Every child asks oneDNN for kernels it has not made yet, with hardly any address space left. Which of them
# find room, say that there was none, or do not say why is the processor's business; so the words of the last
# kind are asked about as well, in the same need.
CHILD = """
import json, os, resource, sys
import torch
from detscope.machine.limits import status_bytes
from detscope.sweep.outcome import classify_exception
import detscope.record.memory.failures as failures

def tell(error):
    found = failures.find_out_of_memory(error, "cpu")
    row = {
        "said": str(error).splitlines()[0],
        "status": found and found.status,
        "message": found and found.message,
        "sweep": classify_exception(error).kind,
    }
    print(json.dumps(row), flush=True)

torch.set_num_threads(1)
torch.nn.Conv2d(3, 8, 3)(torch.rand(2, 3, 64, 64)).sum().backward()
images, layers = torch.rand(4, 64, 64, 64), [torch.nn.Conv2d(64, 64, 5, groups=g) for g in (1, 64)]
for room in (64 << 10, 256 << 10, 4 << 20, 16 << 20):
    if os.fork() == 0:
        resource.setrlimit(resource.RLIMIT_AS, (status_bytes("VmSize") + room,) * 2)
        for layer in layers:
            try:
                layer(images)
            except RuntimeError as error:
                tell(error)
        tell(RuntimeError("could not create a primitive"))
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux: reads /proc/self/status")
def test_a_kernel_that_cannot_be_made_for_want_of_memory_is_out_of_memory():
    child = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, check=True, timeout=900
    )
    rows = [json.loads(line) for line in child.stdout.splitlines()]
    assert {(row["status"], row["sweep"]) for row in rows} <= {("oom_host", "oom_host")}, rows
    silent = [row for row in rows if row["said"].startswith("could not")]
    assert len(silent) >= 4
    for row in silent:
        assert row["message"].startswith(f"{row['said']} (the process had come within")


def test_the_same_words_in_a_process_without_a_limit_are_an_error_like_any_other(monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert least_addresses_left_bytes() is None
    assert host_memory_ran_out("could not create a primitive") is None
    assert host_memory_ran_out("can't allocate memory: you tried to allocate 96 bytes") is not None
