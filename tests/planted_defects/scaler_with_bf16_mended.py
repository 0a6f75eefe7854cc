"""A scaler that rests beside bfloat16."""

import torch
from drawn_boxes import Detector, device, loss_of, make_loader

model = Detector()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
dtype = torch.bfloat16
scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
for images, boxes in make_loader():
    with torch.autocast(device.type, dtype=dtype):
        output = model(images.float() / 255)
    loss = loss_of(output.float(), boxes)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
