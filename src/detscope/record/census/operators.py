"""Which operators and functions make the host wait for the device, and how; one table."""

from __future__ import annotations

from typing import Any

import torch

READ, SIZE, COPY, FEED, INDEX, LAUNCH = "read", "size", "copy", "feed", "index", "launch"
ALLOCATION = "allocation"  # for which torch's allocator asked the driver
WAITS = (READ, SIZE, COPY)  # kinds in which the host waits for the device

# operators after which the host has to know a value, or how many elements came out
WAITING = {
    "aten::_local_scalar_dense": READ,
    "aten::item": READ,  # of a tensor of inference_mode: it is not taken apart before
    "aten::equal": READ,
    "aten::allclose": READ,
    "aten::_linalg_check_errors": READ,
    "aten::is_nonzero": READ,
    "aten::nonzero": SIZE,
    "aten::masked_select": SIZE,
    "aten::_unique": SIZE,
    "aten::_unique2": SIZE,
    "aten::unique_dim": SIZE,
    "aten::unique_consecutive": SIZE,
    "aten::repeat_interleave": SIZE,
    "aten::bincount": SIZE,
    "torchvision::nms": SIZE,
}
# made of others, waits or copies among them; such as a linear layer is not to be taken apart, because what
# it is made of rounds differently
HIDING = frozenset(
    {
        "aten::item", "aten::is_nonzero", "aten::where", "aten::argwhere", "aten::nonzero_numpy",
        "aten::allclose", "aten::repeat_interleave", "aten::one_hot", "aten::tensor_split",
        "aten::linalg_inv", "aten::inverse", "aten::linalg_solve", "aten::linalg_cholesky", "aten::isclose",
        "aten::to", "aten::contiguous", "aten::reshape", "aten::flatten", "aten::type_as",
        "aten::resolve_conj", "aten::resolve_neg",
    }
)  # fmt: skip
INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
# no kernel runs for these: memory is taken, or a tensor is looked at in another way
WITHOUT_KERNEL = frozenset(
    {
        "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty",
        "aten::new_empty_strided", "aten::_unsafe_view", "aten::_reshape_alias", "aten::lift_fresh",
        "aten::detach", "aten::resize_", "aten::set_", "aten::is_same_size",
        "aten::_local_scalar_dense", "aten::item", "aten::record_stream",
    }
)  # fmt: skip
# functions inside of which a CPU reads values that a device does not: checks of a range
CHECKED_ON_A_CPU_ONLY = ("one_hot", "quantile", "nanquantile")
CHECKS = ("aten::_local_scalar_dense", "aten::aminmax", "aten::min", "aten::max")  # what they do for it
# methods that copy to the host; on a CPU no operator is called for them
TO_HOST = {"cpu": COPY, "numpy": COPY, "tolist": COPY, "__array__": COPY}
TO_HOST |= {"__repr__": READ, "__format__": READ}  # however many values are printed
FACTORIES = (
    "tensor", "as_tensor", "zeros", "ones", "full", "empty", "arange", "linspace", "eye", "rand", "randn",
    "randint", "randperm", "scalar_tensor", "from_numpy", "logspace", "normal", "tril_indices",
    "triu_indices", "hann_window", "asarray", "frombuffer",
)  # fmt: skip
OF_DATA = ("tensor", "as_tensor", "asarray", "from_numpy", "frombuffer", "scalar_tensor", "new_tensor")
FROM_HOST = ("tensor", "as_tensor", "asarray")  # of numbers on the host, wherever the tensor is to live


def count_driver_calls() -> int:
    """How often torch's allocator has asked the driver of the current device for memory."""
    if not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.memory_stats_as_nested_dict().get("num_device_alloc", 0))


def makes_wait(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The kind of wait that an operator is on a device, if any."""
    if name == "aten::repeat_interleave":  # unless it is told how many there will be
        told = kwargs.get("output_size", args[1] if len(args) > 1 else None)
        return None if told is not None else SIZE
    return WAITING.get(name)


def is_masked(name: str, args: tuple[Any, ...]) -> bool:
    """Whether an indexing operator has to count what a mask lets through."""
    if name not in INDEXING or len(args) < 2:
        return False
    masks = (torch.bool, torch.uint8)
    return any(isinstance(one, torch.Tensor) and one.dtype in masks for one in args[1])
