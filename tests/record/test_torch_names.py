"""What the package takes from torch and torchvision is there in this torch, or is asked for and done without.

Every private name stands in a table below. `make test-torch TORCH=2.6.0` asks the same of the oldest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader
from torch_names import NameUse, find_event_uses, find_thing, find_uses, takes_keyword

# Needed: every torch from the oldest of pyproject.toml to the newest has them.
NEEDED = {
    "torch.UntypedStorage._new_shared",
    "torch._C",
    "torch._C.DisableTorchFunction",
    "torch._C.DisableTorchFunctionSubclass",
    "torch._C.DispatchKey.Python",
    "torch._C._autograd._get_sequence_nr",
    "torch._C._dispatch_tls_is_dispatch_key_included",
    "torch._C._distributed_c10d.GradBucket",
    "torch._C._distributed_c10d.PrefixStore",
    "torch._C._distributed_c10d.ProcessGroup",
    "torch._C._distributed_c10d.Store",
    "torch._C._distributed_c10d.TCPStore",
    "torch._C._distributed_c10d.Work",
    "torch._C._get_dispatch_stack_at",
    "torch._C._get_function_stack_at",
    "torch._C._get_tracing_state",
    "torch._C._len_torch_dispatch_stack",
    "torch._C._len_torch_function_stack",
    "torch._C._pop_torch_function_stack",
    "torch._C._profiler._ExperimentalConfig",
    "torch._C._profiler._RecordFunctionFast",
    "torch._C._profiler._TensorMetadata",
    "torch._C._push_on_torch_function_stack",
    "torch._foreach_lerp_",
    "torch._prims_common.suggest_memory_format",
    "torch.autograd.Variable._execution_engine.queue_callback",
    "torch.distributed._functional_collectives",
    "torch.distributed.distributed_c10d._update_default_pg",
    "torch.fx._symbolic_trace",
    "torch.jit._trace",
    "torch.nn.modules.batchnorm._BatchNorm",
    "torch.nn.modules.conv._ConvNd",
    "torch.nn.modules.instancenorm._InstanceNorm",
    "torch.ops.profiler._record_function_enter_new",
    "torch.ops.profiler._record_function_exit._RecordFunction",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._python_dispatch._disable_current_modes",
    "torch.utils._pytree.tree_leaves",
    "torch.utils.data._utils.fetch",
    "torch.utils.data._utils.fetch._IterableDatasetFetcher",
    "torch.utils.data._utils.fetch._MapDatasetFetcher",
    "torch.utils.data._utils.pin_memory.pin_memory",
    "torch.utils.data.dataloader._BaseDataLoaderIter",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter",
    "torch.utils.data.dataloader._SingleProcessDataLoaderIter",
    "torchvision.models.detection._utils.retrieve_out_channels",
}
# Optional, and what is done in a torch that lacks them.
OPTIONAL = {
    "torch._C._dynamo.eval_frame": "the compiler looks at our functions itself",
    "torch._C._dynamo.eval_frame._FrameAction.DEFAULT": "the same",
    "torch._C._dynamo.eval_frame._FrameAction.SKIP": "the same",
    "torch._C._dynamo.eval_frame._FrameExecStrategy": "the same",
    "torch._C._dynamo.eval_frame.set_code_exec_strategy": "the same",
}


def make_node() -> Any:
    """A node of autograd's."""
    return (torch.ones(1, requires_grad=True) * 2).grad_fn


def make_loader() -> Any:
    return DataLoader([1, 2])  # type: ignore[arg-type]


def make_transform() -> Any:
    return torchvision.models.detection.transform.GeneralizedRCNNTransform(32, 32, [0.0], [1.0])


# Attributes of what torch hands out, and names given as texts: who has them.
HELD: dict[str, Callable[[], Any]] = {
    "_adaptive_avg_pool2d": lambda: torch.ops.aten,
    "_adaptive_avg_pool2d_backward": lambda: torch.ops.aten,
    "_backward_hooks": lambda: torch.Tensor,
    "_buffers": nn.Module,
    "_cdata": lambda: torch.ones(1).untyped_storage(),
    "_comm_hooks": lambda: Path(torch.nn.parallel.distributed.__file__),
    "_enable_profiler": lambda: torch.autograd.profiler,
    "_engine_run_backward": lambda: torch.autograd,
    "_get_default_store": lambda: torch.distributed.distributed_c10d,
    "_get_iterator": lambda: DataLoader,
    "_modules": nn.Module,
    "_next_data": lambda: torch.utils.data.dataloader._SingleProcessDataLoaderIter,
    "_non_persistent_buffers_set": nn.Module,
    "_parameters": nn.Module,
    "_prepare_profiler": lambda: torch.autograd.profiler,
    "_profiler_enabled": lambda: torch.autograd,
    "_schema": lambda: torch.ops.aten.add.Tensor,
    "_sequence_nr": make_node,
    "_shutdown_workers": lambda: torch.utils.data.dataloader._MultiProcessingDataLoaderIter,
    "_update_default_pg": lambda: torch.distributed.distributed_c10d,
    "_version": lambda: torch.ones(1),
}
# The same, where something is done without them.
HELD_OPTIONAL = {
    "_allgather_base": "collectives by that name are not called in such a torch",
    "_create_interpreter_name_lookup_fn": "a program traced in a counted step has other names of values",
    "_compiled_call_impl": "parts compiled in place are not known as compiled",
    "_end_coalescing": "as _allgather_base",
    "_get_is_fx_tracing": "the flag of older versions is asked for instead",
    "_is_fx_tracing_flag": "tracers of torch.fx keep the plain call",
    "_is_cn": "torchvision's own mark of a block; a family without it has no such block",
    "_iterator": "there are no workers that persist",
    "_num_workers": "the number of workers is not told",
    "_orig_mod": "the wrapper of torch.compile is taken for the model",
    "_pre_forward": "the exchange of buffers is part of forward",
    "_reduce_scatter_base": "as _allgather_base",
    "_register_hook_dict": "the public register_prehook, which costs more",
    "_roi_align_backward": "its work is not counted",
    "_skip_resize": "images are resized as ever, and the verb says so",
    "_workers": "a worker that died is not named",
    "_{}EventBase": "the public class's record, which costs more",
    "_cuda_getCublasWorkspaceSize": "the size that torch documents for the device's capability",
    "_{}_getCurrentRawStream": "a build without that kind of device has no such device either",
}
# Python's own, and those of classes of ours that another file looks into.
NOT_TORCHS = {
    "_RJEM_MALLOC_CONF",
    "_asdict",
    "_fields",
    "_inheriting",
    "_replace",
    "_run_module_as_main",
    "_sock",
    "_target",
    "_threading_atexits",
}

uses = functools.cache(find_uses)


def places(wrong: list[NameUse]) -> str:
    return "\n".join(f"{use.place}: {use.name}" for use in wrong)


def attribute_of(use: NameUse) -> str | None:
    return use.name[2:] if use.name.startswith("*.") else None


def test_every_private_name_of_torch_that_is_used_is_listed() -> None:
    known = NEEDED | set(OPTIONAL) | {f"*.{name}" for name in (*HELD, *HELD_OPTIONAL, *NOT_TORCHS)}
    unknown = [use for use in uses() if use.is_private and use.name not in known]
    assert not unknown, f"list them, with what is done where torch lacks them:\n{places(unknown)}"
    used = {use.name for use in uses()}
    assert not known - used, f"listed and not used: {sorted(known - used)}"


def test_names_that_a_torch_may_lack_are_asked_for_and_not_assumed() -> None:
    optional = {*OPTIONAL, *(f"*.{name}" for name in HELD_OPTIONAL)}
    assumed = [use for use in uses() if use.name in optional and not use.asked]
    assert not assumed, places(assumed)


def test_this_torch_has_every_name_that_is_not_optional() -> None:
    lacking = []
    for use in uses():
        if attribute_of(use) is None and not use.asked:
            try:
                find_thing(use.name)
            except LookupError:
                lacking.append(use)
    assert not lacking, f"not in torch {torch.__version__}:\n{places(lacking)}"


@pytest.mark.parametrize("name", sorted(HELD))
def test_this_torch_gives_its_objects_the_private_attributes_that_are_used(name: str) -> None:
    owner = HELD[name]()
    if isinstance(owner, Path):  # made only where there are ranks
        assert f"self.{name}" in owner.read_text(encoding="utf-8")
    else:
        assert hasattr(owner, name), f"not in torch {torch.__version__}"


def test_functions_of_torch_are_called_with_arguments_that_this_torch_knows() -> None:
    wrong = []
    for use in uses():
        try:
            assumed = bool(use.keywords) and not use.asked and attribute_of(use) is None
            thing = find_thing(use.name) if assumed else None
        except LookupError:
            continue
        unknown = [word for word in use.keywords if thing is not None and not takes_keyword(thing, word)]
        wrong += [f"{use.place}: {use.name}({word}=...)" for word in unknown]
    assert not wrong, f"not in torch {torch.__version__}:\n" + "\n".join(wrong)


def test_attributes_of_the_profilers_events_are_there_or_asked_for() -> None:
    found = find_event_uses()
    assert {"start_ns", "children"} <= {name for name, _, _ in found}
    wrong = []
    for name, place, kinds in found:
        if not any(hasattr(find_thing(kind), name) for kind in kinds):
            wrong.append(f"{place}: .{name} of {' or '.join(kinds)}")
    assert not wrong, f"not in torch {torch.__version__}:\n" + "\n".join(wrong)
