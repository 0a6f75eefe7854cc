"""What a device's memory holds besides tensors: the driver's context, and workspaces of libraries."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

BLOCK_BYTES = 512  # torch's caching allocators give out multiples of this
# a large block whose rest would be smaller is given out whole
LARGEST_REST_BYTES, LARGE_BYTES = 1 << 20, 1 << 20
# Driver, kernels as they are loaded, cuBLAS and cuDNN. It differs between devices and drivers, 0.2 to 0.8 GB.
CONTEXT_BYTES = 500_000_000
_CONFIG = re.compile(r":(\d+):(\d+)")


def round_block(size: int) -> int:
    """Bytes of the block that a tensor of so many bytes gets."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def may_hold(block_bytes: int, size: int) -> bool:
    """Whether a block of so many bytes was given out for a tensor of so many."""
    rest = block_bytes - round_block(size)
    return rest == 0 or (0 < rest <= LARGEST_REST_BYTES and size > LARGE_BYTES)


def count_cublas_workspace(major: int | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """Bytes that torch keeps for cuBLAS, per handle and stream, on a device of this major capability."""
    torch = sys.modules.get("torch")
    if major is None and torch is not None and torch.cuda.is_initialized():
        asked = getattr(torch._C, "_cuda_getCublasWorkspaceSize", None)
        if asked is not None:
            return int(asked())
        major = torch.cuda.get_device_capability()[0]
    pairs = _CONFIG.findall(environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pairs:
        return sum(int(size) * int(count) for size, count in pairs) * 1024
    return (32 << 20) if major is not None and major >= 9 else (4096 * 2 + 16 * 8) * 1024
