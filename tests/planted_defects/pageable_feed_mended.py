"""Constants that were sent to the device once."""

import torch
from drawn_boxes import Detector, device, loss_of, make_loader

model = Detector()
optimizer = torch.optim.SGD(model.parameters(), 0.01)


ANCHORS = torch.tensor([(0.1, 0.1), (0.1, 0.2), (0.2, 0.1), (0.2, 0.2), (0.4, 0.4)], device=device)


def anchor_loss(output):
    return (output[..., 2:4].mean((0, 1)) - ANCHORS).abs().sum()


for images, boxes in make_loader():
    output = model(images.float() / 255)
    loss = loss_of(output, boxes) + anchor_loss(output)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
