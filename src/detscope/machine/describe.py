"""What a figure of a device depends on besides the code: name, size, clocks, driver, precision switches."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from detscope.machine.accelerator import Accelerator
from detscope.machine.meters import open_meter

_ARCHITECTURE = re.compile(r"(?:sm|compute)_(\d+)(\d)[a-z]?")


def describe_accelerator(accelerator: Accelerator) -> dict[str, Any] | None:
    """The device for `run.json`; None of a CPU. Ask once the program uses the device: it must be started.

    What cannot be told is None, with the reason under `unknown`.
    """
    if accelerator.is_host:
        return None
    torch = sys.modules["torch"]
    found: dict[str, Any] = dict.fromkeys(
        (
            "name", "uuid", "capability", "multiprocessors", "memory_total_bytes", "max_sm_clock_mhz",
            "power_limit_w", "driver", "runtime", "arch_list_has",
        )
    )  # fmt: skip
    found |= {"device": accelerator.name, "kind": accelerator.kind, "unknown": dict(accelerator.unknown)}
    describe = {"cuda": _describe_cuda, "xpu": _describe_xpu, "mps": _describe_mps}.get(accelerator.kind)
    if describe is not None:
        try:
            found |= describe(torch, accelerator.index)
        except (RuntimeError, AssertionError) as error:
            found["unknown"]["properties"] = str(error).splitlines()[0]
    meter, reason = open_meter(accelerator.name)
    if meter is None:
        found["unknown"]["clocks and power"] = reason
    else:
        found |= meter.read_facts()
        meter.close()
    return found


def _describe_cuda(torch: Any, index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    hip = torch.version.hip
    capability = f"{properties.major}.{properties.minor}"
    built_for = torch.cuda.get_arch_list()
    own_name = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
    return {
        "name": properties.name,
        "uuid": None if (uuid := getattr(properties, "uuid", None)) is None else str(uuid),
        "capability": own_name if hip else capability,
        "multiprocessors": properties.multi_processor_count,
        "memory_total_bytes": properties.total_memory,
        "runtime": f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}",
        "arch_list_has": own_name in built_for if hip else runs_architecture(capability, built_for),
        **read_precision_switches(torch),
    }


def _describe_xpu(torch: Any, index: int) -> dict[str, Any]:
    properties = torch.xpu.get_device_properties(index)

    def ask(name: str) -> Any:
        return getattr(properties, name, None)

    return {
        "name": ask("name"),
        "uuid": None if ask("uuid") is None else str(ask("uuid")),
        "multiprocessors": ask("gpu_subslice_count") or ask("gpu_eu_count"),
        "memory_total_bytes": ask("total_memory"),
        "driver": ask("driver_version"),
        "runtime": f"XPU {getattr(torch.version, 'xpu', None) or ''}".strip(),
    }


def _describe_mps(torch: Any, _: int) -> dict[str, Any]:
    def ask(name: str) -> Any:
        return getattr(torch.backends.mps, name, lambda: None)()

    return {"name": ask("get_name"), "multiprocessors": ask("get_core_count"), "runtime": "Metal"}


def read_precision_switches(torch: Any) -> dict[str, Any]:
    """Whether fp32 products and convolutions may run as TF32, and how cuDNN chooses its kernels."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    found: dict[str, Any] = {
        "tf32_matmul": _read_switch(lambda: matmul.allow_tf32, lambda: matmul.fp32_precision),
        "tf32_cudnn": _read_switch(lambda: cudnn.allow_tf32, lambda: cudnn.conv.fp32_precision),
        "cudnn_benchmark": bool(cudnn.benchmark),
        "cudnn_deterministic": bool(cudnn.deterministic),
        "cudnn_enabled": bool(cudnn.enabled),
    }
    with suppress(AttributeError, RuntimeError):  # newer names, which may say more: "none", "ieee", "tf32"
        found["fp32_precision"] = {"matmul": matmul.fp32_precision, "conv": cudnn.conv.fp32_precision}
    return found


def _read_switch(older: Callable[[], Any], newer: Callable[[], Any]) -> bool | None:
    """The older switch; torch refuses to read it where the program has used the newer one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return bool(older())
        except RuntimeError:
            with suppress(AttributeError, RuntimeError):
                return bool(newer() == "tf32")
    return None


def runs_architecture(capability: str, built_for: Sequence[str]) -> bool:
    """Whether a device of this capability runs what torch was built for (`sm_86`; `compute_90`: any newer).

    Machine code runs on devices of the same major version and no older minor one.
    """
    major, minor = map(int, capability.split("."))
    for name in built_for:
        own = parse_architecture(name)
        if own is not None and own <= (major, minor) and (name.startswith("compute") or own[0] == major):
            return True
    return False


def parse_architecture(name: str) -> tuple[int, int] | None:
    """8, 6 of `sm_86`; None of what is no architecture of CUDA's."""
    match = _ARCHITECTURE.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))
