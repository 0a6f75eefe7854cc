"""One group for every setting."""

import torch
from drawn_boxes import Detector, loss_of, make_loader

model = Detector(blocks=12)
decayed = [one for one in model.parameters() if one.dim() >= 2]
others = [one for one in model.parameters() if one.dim() < 2]
groups = [{"params": decayed, "weight_decay": 1e-4}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, 0.001)
for images, boxes in make_loader():
    loss = loss_of(model(images.float() / 255), boxes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
