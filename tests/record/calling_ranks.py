"""Two ranks that call every collective, the second later than the first; what is noted goes to files.

python calling_ranks.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.distributed import all_reduce  # bound before anybody listens

from detscope.record.communication import CommunicationWatch
from detscope.record.foreign import Patches


def calls(rank: int) -> dict[str, Callable[[], Any]]:
    """By name; ranks call them in this order, rank 1 after a pause."""
    own, two = torch.ones(4), [torch.empty(4), torch.empty(4)]
    other = 1 - rank

    def wait_for(work: Any) -> None:
        work.wait()

    def pair() -> None:
        there, back = dist.P2POp(dist.isend, own, other), dist.P2POp(dist.irecv, two[0], other)
        for work in dist.batch_isend_irecv([there, back]):
            work.wait()

    def functional() -> Any:
        from torch.distributed._functional_collectives import all_reduce as functional_all_reduce

        return functional_all_reduce(own, "sum", dist.group.WORLD) + 1

    return {
        "all_reduce": lambda: dist.all_reduce(own),
        "all_reduce bound before": lambda: all_reduce(own),
        "all_reduce, waited for": lambda: wait_for(dist.all_reduce(own, async_op=True)),
        "barrier": dist.barrier,
        "monitored_barrier": dist.monitored_barrier,
        "all_gather": lambda: dist.all_gather(two, own),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.empty(8), own),
        "all_gather_object": lambda: dist.all_gather_object([None, None], {"rank": rank}),
        "broadcast": lambda: dist.broadcast(own, 1),
        "broadcast_object_list": lambda: dist.broadcast_object_list([rank], 1),
        "reduce": lambda: dist.reduce(own, 0),
        "reduce_scatter": lambda: dist.reduce_scatter(torch.empty(4), [own, own]),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.empty(4), own),
        "gather": lambda: dist.gather(own, None if rank else two),
        "scatter": lambda: dist.scatter(own, two if rank else None, src=1),
        "send or recv": lambda: dist.send(own, 0) if rank else dist.recv(own, 1),
        "batch_isend_irecv": pair,
        "functional": functional,
    }


def work(rank: int, folder: str) -> None:
    """Call them all, each in a step of its own."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    watch, patches = CommunicationWatch(rank), Patches()
    watch.attach_to_calls(patches, lambda: "other")
    rows: dict[str, list[Any]] = {}
    failed: dict[str, str] = {}
    for step, (name, call) in enumerate(calls(rank).items()):
        time.sleep(0.02 * rank)
        try:
            call()
        except RuntimeError as error:  # not every backend knows every collective
            if "support" not in str(error) and not isinstance(error, NotImplementedError):
                raise
            failed[name] = str(error)
        rows[name] = watch.take_step(step)
    patches.undo()
    dist.all_reduce(torch.ones(1))
    rows["after"] = watch.take_step(99)
    Path(folder, f"rank-{rank}.json").write_text(json.dumps({"rows": rows, "failed": failed}))
    dist.destroy_process_group()
    # A functional collective keeps the group and its threads alive. One of them that lets go of a tensor
    # while Python ends takes the process down, with us and without (pytorch issue 190489).
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    processes.spawn(work, (sys.argv[1],), nprocs=2)
