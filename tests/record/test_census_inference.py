"""A counted step that ends inside of torch's inference mode, as the last before an evaluation does."""

from __future__ import annotations

import torch

from detscope.record.census.watch import Census


def test_operators_run_after_an_inference_mode_in_which_a_counted_step_ended():
    census, numbers = Census(real_device=False), torch.rand(3)
    census.begin_step()
    with torch.inference_mode():
        assert census.end_step(None) == []
        assert (numbers + 1).isfinite().all()
    assert numbers.isfinite().all()
    census.add_batch(numbers)
    assert torch._C._len_torch_dispatch_stack() == torch._C._len_torch_function_stack() == 0
    assert numbers.isfinite().all()
