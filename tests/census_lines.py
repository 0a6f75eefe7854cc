"""Code that makes the host wait for the device in every way there is, and code that only looks like it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional


class Given:
    """What a step begins with: all of it lives on the device."""

    def __init__(self, here: str = "cpu") -> None:
        self.here = here
        self.x = torch.arange(1.0, 7.0).to(here)
        self.one = torch.tensor(3.0).to(here)
        self.mask = self.x > 2
        self.places = torch.tensor([0, 1]).to(here)
        self.repeats = torch.tensor([1, 2, 1, 1, 1, 1]).to(here)
        self.weight = torch.arange(6.0).to(here).requires_grad_()
        self.square = torch.eye(3).to(here) + 1


def assign(given: Given, value: Any) -> None:
    made = given.x.clone()
    made[given.mask] = value


def go_back_through_a_mask(given: Given) -> None:
    given.weight[given.mask].sum().backward()


def stay_beside_the_host(given: Given) -> None:
    copied = given.x.cpu()
    made = torch.tensor([1.0, 2.0], device=copied.device)
    here = copied.device
    (made + copied[:2].to(made.device) + torch.as_tensor([1.0, 2.0], device=here)).sum().item()


def stay_on_host(given: Given) -> None:
    copied = given.x.cpu()
    assert (copied > 0).all()
    copied[copied > 3].sum().item()
    copied.tolist()


def copy_and_use_both(given: Given) -> None:
    print_nothing(given.x.cpu())
    float(given.x.sum())


def print_nothing(values: torch.Tensor) -> None:
    assert values.tolist()


def copy_in_a_loop(given: Given) -> None:
    for index in range(3):
        print_nothing(given.x.cpu()[index : index + 1])


def copy_for_keeps(given: Given) -> None:
    given.x = given.x.cpu()
    given.x.cpu()
    float(given.x.sum())


def copy_into_a_list(given: Given) -> None:
    rows = [one.cpu() for one in (given.x, given.one)]
    float(rows[1])


def meet_the_device(given: Given) -> None:
    host = torch.ones(6)
    (host + given.x).sum().item()


def feed_a_list(given: Given) -> None:
    made = torch.tensor([1.0, 2.0], device=given.here)
    float(made.sum())


def make_on_the_device(given: Given) -> None:
    float(torch.zeros(3, device=given.here).sum())


def copy_into_each_other(given: Given) -> None:
    host = torch.empty(6)
    host.copy_(given.x)
    given.x.copy_(host)


def clip(given: Given) -> None:
    given.weight.grad = torch.ones_like(given.weight)
    torch.nn.utils.clip_grad_norm_([given.weight], 1.0, error_if_nonfinite=True)


def scale(given: Given) -> None:
    optimizer = torch.optim.SGD([given.weight], 0.1)
    scaler = torch.amp.GradScaler(given.here)
    scaler.scale(given.weight.sum()).backward()
    scaler.step(optimizer)


CASES: dict[str, tuple[Callable[[Given], object], dict[str, int]]] = {
    "item": (lambda g: g.one.item(), {"read": 1}),
    "bool": (lambda g: bool(g.one), {"read": 1}),
    "if": (lambda g: 1 if g.mask.any() else 0, {"read": 1}),
    "int": (lambda g: int(g.one), {"read": 1}),
    "float": (lambda g: float(g.one), {"read": 1}),
    "as an index": (lambda g: range(g.places[1]), {"read": 1}),
    "max of Python's": (lambda g: max(g.one, 1), {"read": 1}),
    "sorted": (lambda g: sorted([g.one, g.one + 1]), {"read": 1}),
    "in a list": (lambda g: g.one in [g.one + 1, g.one + 0], {"read": 2}),
    "in a tensor": (lambda g: 3.0 in g.x, {"read": 1}),
    "an old format": (lambda g: "%.2f" % g.one, {"read": 1}),  # noqa: UP031
    "a format": (lambda g: f"{g.one:.2f}", {"read": 1}),
    "a tensor in a text": (lambda g: f"{g.x}", {"read": 1}),
    "repr": (lambda g: repr(g.x), {"read": 1}),
    "equal": (lambda g: torch.equal(g.x, g.x + 0), {"read": 1}),
    "allclose": (lambda g: torch.allclose(g.x, g.x + 0), {"read": 1}),
    "an inverse": (lambda g: torch.linalg.inv(g.square), {"read": 1}),
    "norm that has to be finite": (clip, {"read": 1}),
    "a scaler's infinities": (scale, {"read": 1}),
    "tolist": (lambda g: g.x.tolist(), {"copy": 1}),
    "cpu": (lambda g: g.x.cpu(), {"copy": 1}),
    "numpy": (lambda g: g.x.cpu().numpy(), {"copy": 1}),
    "detached": (lambda g: g.weight.detach().cpu().numpy(), {"copy": 1}),
    "asarray": (lambda g: np.asarray(g.x), {"copy": 1}),
    "to cpu, written": (lambda g: g.x.to("cpu"), {"copy": 1}),
    "to a device of torch's, written": (lambda g: g.x.to(torch.device("cpu"), torch.float64), {"copy": 1}),
    "to one of two": (lambda g: g.x.to("cuda" if torch.cuda.is_available() else "cpu"), {}),
    "to cpu, without waiting": (lambda g: g.x.to("cpu", non_blocking=True), {}),
    "the same by position": (lambda g: g.x.to("cpu", torch.float32, True), {}),
    "to a variable": (lambda g: g.x.to(g.here), {}),
    "to where another is": (lambda g: torch.ones(6).to(g.x), {"feed": 1}),
    "nonzero": (lambda g: g.mask.nonzero(), {"size": 1}),
    "where": (lambda g: torch.where(g.mask), {"size": 1}),
    "where of three": (lambda g: torch.where(g.mask, g.x, 0), {}),
    "a mask": (lambda g: g.x[g.mask], {"size": 1}),
    "a mask, assigned a number": (lambda g: assign(g, 0.0), {}),
    "a mask, assigned values": (lambda g: assign(g, g.one), {"size": 1}),
    "a mask, backward": (go_back_through_a_mask, {"size": 2}),
    "unique": (lambda g: torch.unique(g.places), {"size": 1}),
    "masked_select": (lambda g: g.x.masked_select(g.mask), {"size": 1}),
    "bincount": (lambda g: torch.bincount(g.places), {"size": 1}),
    "repeats": (lambda g: g.x.repeat_interleave(g.repeats), {"size": 1}),
    "repeats, told how many": (lambda g: g.x.repeat_interleave(g.repeats, output_size=7), {}),
    "one_hot of the largest": (lambda g: functional.one_hot(g.places), {"read": 1}),
    "one_hot of so many": (lambda g: functional.one_hot(g.places, 3), {}),
    "quantile": (lambda g: torch.quantile(g.x, 0.5), {}),
    "a list as index": (lambda g: g.x[[0, 1]], {"index": 1}),
    "an array as index": (lambda g: g.x[np.array([0, 1])], {"index": 1}),
    "a host's tensor as index": (lambda g: g.x[torch.arange(2)], {"index": 1}),
    "a device's tensor as index": (lambda g: g.x[g.places], {}),
    "numbers to the device": (feed_a_list, {"feed": 1, "read": 1}),
    "numbers beside a tensor of the host": (stay_beside_the_host, {"copy": 1}),
    "numbers like a tensor": (lambda g: g.x.new_tensor([1.0, 2.0]), {"feed": 1}),
    "made on the device": (make_on_the_device, {"read": 1}),
    "made on the host": (lambda g: float(torch.zeros(3).sum()), {}),
    "a tensor of a tensor": (lambda g: float(torch.as_tensor(g.one)), {"read": 1}),
    "legacy constructors": (lambda g: torch.Tensor([1, 2]).sum().item(), {}),
    "from numpy": (lambda g: torch.from_numpy(np.ones(3)).to(g.here), {"feed": 1}),
    "one into the other": (copy_into_each_other, {"copy": 1, "feed": 1}),
    "into the device, without waiting": (lambda g: g.x.copy_(torch.ones(6), non_blocking=True), {}),
    "to the device, without waiting": (lambda g: torch.ones(6).to(g.x.device, non_blocking=True), {}),
    "what follows a copy": (stay_on_host, {"copy": 1}),
    "a copy passed on, then the original": (copy_and_use_both, {"copy": 1, "read": 1}),
    "a copy in a loop": (copy_in_a_loop, {"copy": 3}),
    "a copy for keeps": (copy_for_keeps, {"copy": 1}),
    "copies in a list": (copy_into_a_list, {"copy": 2}),
    "host and device together": (meet_the_device, {"read": 1}),
    "rows of a tensor": (lambda g: [one for one in g.x], {}),  # noqa: C416
    "its length": (lambda g: len(g.x), {}),
    "a deep copy": (lambda g: copy.deepcopy(g.x), {}),
}
