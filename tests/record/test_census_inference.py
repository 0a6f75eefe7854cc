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


def test_what_a_generator_in_inference_mode_gave_is_counted_outside_of_it():
    census = Census(real_device=False)

    @torch.inference_mode()
    def predict():
        numbers = torch.rand(3)
        for index in range(3):
            if index == 1:
                census.begin_step()
            if index == 2:
                rows.extend(census.end_step(0))
            yield numbers

    rows: list = []
    for numbers in predict():
        (numbers * 2).sum().item()
    assert sum(row[10] for row in rows if row[2] == "read") == 1
    assert torch._C._len_torch_dispatch_stack() == torch._C._len_torch_function_stack() == 0
    assert torch.inference_mode.__exit__.__module__.startswith("torch")
