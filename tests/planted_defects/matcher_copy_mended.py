"""A matcher that copies the costs of all layers at once."""

import torch
from drawn_boxes import Detector, loss_of, make_loader

model = Detector()
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def match_boxes(outputs, target):
    cost = (torch.stack(outputs)[:, 0, :, None, :4] - target).abs().sum(-1)
    costs = cost.detach().cpu().numpy()
    return [(int(one.argmin() // len(target)), int(one.argmin() % len(target))) for one in costs]


for images, boxes in make_loader():
    output = model(images.float() / 255)
    target = torch.cat(boxes)
    pairs = match_boxes([output, output * 2, output * 3], target)
    loss = loss_of(output, boxes) + sum(output[0, pair].sum() for pair, _ in pairs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
