"""`detscope ...` in a process whose address space is limited: MEGABYTES more than it needs to begin with."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch
import torchvision.models.detection  # noqa: F401  # loaded before the limit is set

import detscope.loops.train
import detscope.record.recorder
import detscope.sessions.train.training  # noqa: F401
from detscope.cli.main import main
from detscope.record.memory.watch import start_table_threads


def address_space_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmSize"))


if __name__ == "__main__":
    # Without memory oneDNN writes to address 0 (jit_blk_reorder_t::pd_t::clone, in 1 of 4 tries), and nobody
    # can catch that. torch's own kernels ask its allocator, which says so.
    torch.backends.mkldnn.set_flags(False)
    torch.set_num_threads(1)
    start_table_threads()
    torch.nn.Conv2d(3, 8, 3)(torch.rand(2, 3, 64, 64)).sum().backward()
    limit = address_space_bytes() + int(sys.argv[1]) * 10**6
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sys.argv = ["detscope", *sys.argv[2:]]
    sys.exit(main())
