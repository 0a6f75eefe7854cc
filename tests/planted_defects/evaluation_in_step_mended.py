"""What is logged comes from the training pass."""

import torch
from drawn_boxes import Detector, loss_of, make_loader

model = Detector()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for images, boxes in make_loader():
    images = images.float() / 255
    output = model(images)
    loss = loss_of(output, boxes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scores = output.detach()[..., 4:].softmax(-1)
