"""Images that are floats before they are resized."""

import torch
from drawn_boxes import Detector, loss_of, make_loader
from torchvision.transforms import v2

transforms = [
    v2.ToDtype(torch.float32, scale=True),
    v2.Resize((96, 96)),
    v2.RandomHorizontalFlip(1.0),
]
model = Detector()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for images, boxes in make_loader(v2.Compose(transforms)):
    loss = loss_of(model(images), boxes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
