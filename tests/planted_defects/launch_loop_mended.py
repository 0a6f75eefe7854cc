"""The same loss for all cells at once."""

import torch
from drawn_boxes import Detector, loss_of, make_loader

model = Detector()
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def cell_loss(output, boxes):
    return (output[..., :4] - boxes[0].mean(0)).abs().sum()


for images, boxes in make_loader():
    output = model(images.float() / 255)
    loss = loss_of(output, boxes) + cell_loss(output, boxes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
