"""A loop as accelerate documents it; with `callback` it records itself."""

import sys
from contextlib import nullcontext

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from train_hf import Squares, collate, make_model

import detscope

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = make_model()
loader = DataLoader(Squares(2 * 2 * int(sys.argv[1])), batch_size=2, collate_fn=collate)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
with detscope.watch(quiet=True) if sys.argv[-1] == "callback" else nullcontext():
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
