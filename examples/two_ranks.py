"""A training on several processors, each a rank of one group: gradients are averaged after every backward.

torchrun --nproc-per-node 2 -m detscope run examples/two_ranks.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    layers = [torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3), torch.nn.ReLU()]
    model = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(14):
        loss = model(torch.rand(4, 3, 96, 96)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
