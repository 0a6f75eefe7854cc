"""Costs of all pairs, padded boxes, loops over tensors as people write them; marks as in varied_reads.py."""

from copy import deepcopy

import torch
from drawn_boxes import Detector, device, loss_of, make_loader
from torch import nn
from torch.nn import functional
from torchvision.ops import box_iou

model = Detector(blocks=12)
average = deepcopy(model).requires_grad_(False)
optimizer = torch.optim.RMSprop(model.parameters(), 1e-5, foreach=False)


def compare_all(output, boxes):
    return (output[..., None, :] - torch.cat(boxes)).abs().sum(-1)


def cut_rows_and_columns(output, boxes):
    cost, queries, begin, found = compare_all(output.flatten(0, 1), boxes), output.shape[1], 0, []
    for image, one in enumerate(boxes):
        rows = slice(image * queries, (image + 1) * queries)
        found.append(cost[rows, begin : begin + len(one)].argmin(0))  # = cost_over_all_images
        begin += len(one)
    return found


def split_each(output, boxes):
    sizes = [len(one) for one in boxes]
    return [
        image.split(sizes, -1)[index].argmin(0)  # = cost_over_all_images
        for index, image in enumerate(compare_all(output, boxes))
    ]


def index_diagonal(one, other):
    rows = torch.arange(len(one), device=one.device)
    return box_iou(one, other)[rows, rows]  # = cost_over_all_images


def use_whole(output, boxes):
    cost = compare_all(output, boxes)
    return [image.argmin(0) for image in cost]  # ! cost_over_all_images


@torch.inference_mode()
def measure(output, boxes):
    pairs = zip(output, boxes, strict=True)
    return [torch.cdist(image, one, p=1) for image, one in pairs]  # = cdist_few_columns


def pad_each(boxes):
    rows = [functional.pad(one, (0, 0, 0, 100 - len(one))) for one in boxes]
    return torch.stack(rows).sum()  # = padded_boxes


def stack_equal(boxes):
    return torch.stack([torch.rand(100, 4, device=device) for _ in boxes]).sum()  # ! padded_boxes


@torch.no_grad()
def follow(weights):
    for kept, weight in zip(average.parameters(), weights, strict=True):
        kept -= 0.01 * (kept - weight)  # = average_of_weights


@torch.no_grad()
def follow_by_difference(weights):
    for kept, weight in zip(average.parameters(), weights, strict=True):
        kept.add_(weight - kept, alpha=0.01)  # = average_of_weights


def clip(weights):
    for weight in weights:
        nn.utils.clip_grad_norm_(weight, 1.0)  # = launch_loop


@torch.no_grad()
def descend(weights):
    for weight in weights:
        weight -= 1e-9 * weight.grad  # = launch_loop


def evaluate(images):
    with torch.inference_mode():
        return model.forward(images)  # = evaluation_in_step


def ask_teacher(images):
    with torch.no_grad():
        return average(images)  # ! evaluation_in_step


weights = list(model.parameters())
for images, boxes in make_loader():
    images = images.float() / 255
    output = model(images)
    loss = loss_of(output, boxes) + model(images.flip(-1)).mean() + model(images.flip(-2)).mean()
    output, drawn = output[..., :4].detach(), torch.cat(boxes)
    cut_rows_and_columns(output, boxes)
    split_each(output, boxes)
    use_whole(output, boxes)
    index_diagonal(drawn, drawn + 0.1)
    measure(output, boxes)
    pad_each(boxes)
    stack_equal(boxes)
    optimizer.zero_grad()
    loss.backward()
    clip(weights)
    descend(weights)
    optimizer.step()  # = fused_optimizer
    follow(weights)
    follow_by_difference(weights)
    evaluate(images)
    ask_teacher(images)
