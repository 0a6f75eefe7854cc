"""One group for every parameter."""

import torch
from drawn_boxes import Detector, loss_of, make_loader

model = Detector(blocks=12)
groups = [{"params": [one], "weight_decay": 0.0 if one.dim() < 2 else 1e-4} for one in model.parameters()]
optimizer = torch.optim.AdamW(groups, 0.001)
for images, boxes in make_loader():
    loss = loss_of(model(images.float() / 255), boxes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
