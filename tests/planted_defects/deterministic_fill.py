"""Deterministic algorithms, and memory that is filled before it is overwritten."""

import torch
from drawn_boxes import Detector, loss_of, make_loader


def seed_all(seed):
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)


seed_all(0)
model = Detector()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for images, boxes in make_loader():
    loss = loss_of(model(images.float() / 255), boxes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.use_deterministic_algorithms(False)
