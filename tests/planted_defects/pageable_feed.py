"""Constants that are sent to the device in every step."""

import torch
from drawn_boxes import Detector, loss_of, make_loader

model = Detector()
optimizer = torch.optim.SGD(model.parameters(), 0.01)


ANCHORS = [(0.1, 0.1), (0.1, 0.2), (0.2, 0.1), (0.2, 0.2), (0.4, 0.4)]


def anchor_loss(output):
    sizes = output[..., 2:4].mean((0, 1))
    return sum((sizes - torch.tensor(anchor, device=output.device)).abs().sum() for anchor in ANCHORS)


for images, boxes in make_loader():
    output = model(images.float() / 255)
    loss = loss_of(output, boxes) + anchor_loss(output)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
