"""Where backward has its last gradient: what follows is waiting for the exchange of gradients.

DDP and FSDP let the device's queue wait for their collectives when the autograd engine has run its last
node, in callbacks that are called in the order in which they were asked for. Ours is asked for at the first
node, so it comes before theirs; without it the waiting would be time of the stage that ran last.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed

from detscope.record.steps.events import EventBuffer


def hear_last_gradient(buffer: EventBuffer, outputs: Iterable[Any] = ()) -> Any:
    """Ask for an event behind the last node of the coming backward pass; a handle to be removed, or None.

    Only where there is a device's queue and other ranks to wait for: on a host waiting is a call of its own.
    """
    find_code = buffer.find_exchange
    if find_code is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    # what backward starts from: tensors, or edges of the graph
    nodes = (getattr(one, "grad_fn", None) or getattr(one, "node", None) for one in outputs)
    first = next((node for node in nodes if node is not None), None)
    if first is None:
        return None

    def mark_end() -> None:
        buffer.add_event(find_code())

    def ask_for_turn(_gradients: Any) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(mark_end)

    return first.register_prehook(ask_for_turn)
