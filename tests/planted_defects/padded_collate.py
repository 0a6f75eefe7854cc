"""Boxes padded to a number that no image has, where a batch is made."""

import torch
from drawn_boxes import Detector, Drawn, device
from torch.utils.data import DataLoader


def collate(items):
    images, boxes = zip(*items, strict=True)
    padded = torch.zeros(len(boxes), 200, 5)
    for index, one in enumerate(boxes):
        padded[index, : len(one)] = torch.cat([torch.ones(len(one), 1), one], dim=1)
    return torch.stack(images), padded


model = Detector()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for images, targets in DataLoader(Drawn(), batch_size=2, collate_fn=collate):
    images, targets = images.to(device), targets.to(device)
    output = model(images.float() / 255)
    distances = (output[:, :, None, :4] - targets[:, None, :, 1:]).abs().sum(-1)
    is_box = targets[..., 0] > 0
    loss = (distances * is_box[:, None]).sum() / is_box.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
