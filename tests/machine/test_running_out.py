"""Errors of libraries that do not say why: out of memory only where the process really had none left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from detscope.errors import MachineError
from detscope.faults import classify_fault
from detscope.machine.limits import explain_exhausted_memory, least_addresses_left_bytes
from detscope.record.memory.failures import find_out_of_memory
from detscope.sweep.outcome import classify_exception

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
    assert explain_exhausted_memory(RuntimeError("could not create a primitive")) is None
    plain = RuntimeError("can't allocate memory: you tried to allocate 96 bytes")
    assert explain_exhausted_memory(plain) == ("host", str(plain))


DEVICE_WORDS = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "HIP out of memory. Tried to allocate 2.00 GiB.",
    "XPU out of memory. Tried to allocate 2.00 GiB.",
    "MPS backend out of memory (MPS allocated: 9.05 GB, other allocations: 1.2 MB, max allowed: 9.07 GB)",
)


@pytest.mark.parametrize("words", DEVICE_WORDS)
def test_whatever_words_a_devices_library_has_for_it_running_out_is_the_same_everywhere(words):
    error = RuntimeError(words)
    found = find_out_of_memory(error, "cuda:1")
    assert found is not None
    assert (found.status, found.device) == ("oom_device", "cuda:1")
    assert classify_exception(error).kind == "oom_device"
    fault = classify_fault(error)
    assert isinstance(fault, MachineError) and fault.message.startswith("out of memory")


@pytest.mark.parametrize("library", ["CUBLAS", "CUDNN"])
@pytest.mark.parametrize(("free", "kind"), [(30 << 20, "oom_device"), (4 << 30, "error")])
def test_a_library_that_cannot_start_ran_out_of_memory_only_where_none_was_left(
    library, free, kind, monkeypatch
):
    import torch

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: int(str(device) in ("1", "cuda:1")))
    for name in ("memory_allocated", "max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    left = {"cuda:0": 1, "cuda:1": free}  # the other device is full, and nobody's
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (left[str(device)], 8 << 30))
    found = classify_exception(RuntimeError(f"CUDA error: {library}_STATUS_NOT_INITIALIZED when calling x"))
    assert found.kind == kind
    if kind == "oom_device":
        assert "the device had 31 MB left" in found.message


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        ValueError("CUDA out of memory"),
    ],
)
def test_other_errors_of_a_device_are_errors(error):
    assert find_out_of_memory(error, "cuda:0") is None
    assert classify_exception(error).kind == "error"
