"""An optimizer that goes tensor by tensor."""

import torch
from drawn_boxes import Detector, loss_of, make_loader

model = Detector(blocks=12)
optimizer = torch.optim.AdamW(model.parameters(), 0.001, foreach=False)
for images, boxes in make_loader():
    loss = loss_of(model(images.float() / 255), boxes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
