"""Suppression of boxes of all classes at once."""

import torch
from drawn_boxes import STEPS, Drawn, device
from torchvision.ops import batched_nms

CLASSES = 8
model = torch.nn.Conv2d(3, 4 + CLASSES, 16, stride=16).eval().to(device)


def suppress(boxes, scores):
    labels = torch.arange(CLASSES, device=device).repeat_interleave(len(boxes))
    boxes = boxes.repeat(CLASSES, 1)
    return boxes[batched_nms(boxes, scores.T.flatten(), labels, 0.5)]


with torch.inference_mode():
    for image, _ in (Drawn()[index] for index in range(STEPS)):
        output = model(image[None].to(device).float() / 255)[0].flatten(1).T
        corners = output[:, :2].sigmoid() * 40
        suppress(torch.cat([corners, corners + 5 + output[:, 2:4].abs()], 1), output[:, 4:].sigmoid())
