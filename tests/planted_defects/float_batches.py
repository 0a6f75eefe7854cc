"""Images that go to the device as floats."""

import torch
from drawn_boxes import Detector, collate, device, loss_of, make_loader

model = Detector()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for images, boxes in make_loader(lambda image: image.float() / 255, collate):
    images = images.to(device, non_blocking=True)
    loss = loss_of(model(images), [one.to(device) for one in boxes])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
