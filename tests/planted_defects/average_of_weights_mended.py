"""An average of the weights, all tensors at once."""

import copy

import torch
from drawn_boxes import Detector, loss_of, make_loader

model = Detector(blocks=12)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
average = copy.deepcopy(model).eval().requires_grad_(False)
pairs = zip(average.state_dict().values(), model.state_dict().values(), strict=True)
kept, weights = zip(*((one, other) for one, other in pairs if one.is_floating_point()), strict=True)


def update_average(decay=0.99):
    torch._foreach_lerp_(kept, weights, 1 - decay)


for images, boxes in make_loader():
    loss = loss_of(model(images.float() / 255), boxes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update_average()
