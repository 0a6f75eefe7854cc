"""Losses that are read one by one for a log."""

import torch
from drawn_boxes import Detector, loss_of, make_loader

model = Detector()
optimizer = torch.optim.SGD(model.parameters(), 0.01)


history = []


for images, boxes in make_loader():
    output = model(images.float() / 255)
    losses = {"box": loss_of(output, boxes), "classes": output[..., 4:].std(), "size": output.abs().mean()}
    loss = sum(losses.values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append({name: value.item() for name, value in losses.items()})
