"""Checks, reads and copies as people write them; `= rule` names what is to be found, `! rule` what is not."""

import math
import sys

import torch
from drawn_boxes import Detector, collate, device, loss_of, make_loader

model = Detector(blocks=12)
shadow = {name: one.detach().clone() for name, one in model.named_parameters()}
optimizer = torch.optim.RMSprop(model.parameters(), 1e-5)


def stop_at(losses):
    value = sum(losses.values()).item()  # = tensor_check
    if not math.isfinite(value):
        print(f"loss is {value}")
        sys.exit(1)


def look_at_range(boxes):
    low, high = boxes.min().item(), boxes.max().item()  # = tensor_check
    assert low >= 0 and high <= 1, (low, high)


def map_floats(losses):
    return dict(zip(losses, map(float, losses.values()), strict=True))  # = item_per_key


def keep_arrays(losses):
    return [value.detach().cpu().numpy() for value in losses.values()]  # = item_per_key


def format_line(losses):
    return ("%9.4g" * 4) % tuple(losses.values())  # = item_per_key


class Writer:
    def __init__(self):
        self.rows = []

    def add(self, tag, value):
        if torch.is_tensor(value):
            value = value.detach().cpu().item()  # = item_per_key
        self.rows.append((tag, value))


def read_between(losses):
    total = losses["0"]
    for _ in range(2):
        total = halve(total)
    return total


def halve(total):
    share = total.item()  # ! item_per_key
    return total * share


def normalise(images):
    mean = torch.tensor([0.485, 0.456, 0.406]).view(-1, 1, 1).to(images.device)  # = pageable_feed
    return images - mean


def convert(images):
    return (images.float() / 255).to(device)  # = float_batches


def fill_batch(images):
    batch = torch.zeros(len(images), 3, 64, 64)
    for image, place in zip(images, batch, strict=True):
        place.copy_(image)  # ! host_reads
    return batch


@torch.no_grad()
def keep_average():
    for name, one in model.named_parameters():
        shadow[name] = 0.9 * shadow[name] + 0.1 * one.data  # = average_of_weights


class Samples:
    def __init__(self, items):
        self.tensors, self.boxes = collate(items)

    def to(self, place):
        return self.tensors.to(place), self.boxes  # ! pageable_feed


for samples in make_loader(collate_fn=Samples):
    fill_batch(samples.tensors)
    convert(samples.tensors)
    images, boxes = samples.to(device)
    loss = loss_of(model(normalise(images.float() / 255)), boxes)
    losses = {str(index): loss * index for index in range(4)}
    stop_at(losses)
    look_at_range(boxes[0])
    map_floats(losses)
    keep_arrays(losses)
    format_line(losses)
    for name, value in losses.items():
        Writer().add(name, value)
    read_between(losses)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    keep_average()
