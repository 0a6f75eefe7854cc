"""Deterministic algorithms, and memory as it comes."""

import torch
from drawn_boxes import Detector, loss_of, make_loader


def seed_all(seed):
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False


seed_all(0)
model = Detector()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for images, boxes in make_loader():
    loss = loss_of(model(images.float() / 255), boxes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.use_deterministic_algorithms(False)
