"""Your own training loop, recorded: the two `detscope` lines are all that is added.

python examples/own_loop.py
"""

import torch
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

import detscope

model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3).train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
target = {"boxes": torch.tensor([[20.0, 20.0, 200.0, 200.0]]), "labels": torch.tensor([1])}
loader = [([torch.rand(3, 320, 320) for _ in range(2)], [target, target])] * 14

with detscope.Recorder(model, optimizer=optimizer, out="runs") as recorder:
    for images, targets in recorder.steps(loader):
        losses = model(images, targets)
        with detscope.region("sum of losses"):
            loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

print(f"detscope show {recorder.run}")
