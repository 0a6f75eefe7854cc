"""An average of the weights, updated tensor by tensor."""

import copy

import torch
from drawn_boxes import Detector, loss_of, make_loader

model = Detector(blocks=12)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
average = copy.deepcopy(model).eval().requires_grad_(False)


def update_average(decay=0.99):
    weights = model.state_dict()
    for name, kept in average.state_dict().items():
        if kept.dtype.is_floating_point:
            kept *= decay
            kept += (1 - decay) * weights[name].detach()


for images, boxes in make_loader():
    loss = loss_of(model(images.float() / 255), boxes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update_average()
