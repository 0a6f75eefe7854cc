"""A matcher that copies the cost of every layer to the host."""

import torch
from drawn_boxes import Detector, loss_of, make_loader

model = Detector()
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def match_boxes(output, target):
    cost = (output[0, :, None, :4] - target).abs().sum(-1)
    costs = cost.detach().cpu().numpy()
    return int(costs.argmin() // len(target)), int(costs.argmin() % len(target))


for images, boxes in make_loader():
    output = model(images.float() / 255)
    target = torch.cat(boxes)
    pairs = [match_boxes(layer, target) for layer in (output, output * 2, output * 3)]
    loss = loss_of(output, boxes) + sum(output[0, pair].sum() for pair, _ in pairs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
