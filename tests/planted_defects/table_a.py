"""Planted scripts: their rule, and the text of the line that has to be named."""

PLANTED = [
    ("tensor_check.py", "tensor_check", "if not torch.isfinite(output[..., :4]).all():"),
    (
        "item_per_key.py",
        "item_per_key",
        "history.append({name: value.item() for name, value in losses.items()})",
    ),
    ("host_reads.py", "host_reads", "count = max(positive.sum(), 1)"),
    (
        "mask_indexing.py",
        "mask_indexing",
        "corner, size, score = output[..., :2][mask], output[..., 2:4][mask], output[..., 4:][mask]",
    ),
    ("matcher_copy.py", "matcher_copy", "costs = cost.detach().cpu().numpy()"),
    (
        "pageable_feed.py",
        "pageable_feed",
        "return sum((sizes - torch.tensor(anchor, device=output.device)).abs().sum() for anchor in ANCHORS)",
    ),
    ("launch_loop.py", "launch_loop", "total = total + (output[:, cell, :4] - target).abs().sum()"),
    ("cdist_few_columns.py", "cdist_few_columns", "distances = torch.cdist(output, target, p=1)"),
    (
        "cost_over_all_images.py",
        "cost_over_all_images",
        "return [int(piece[image].amin(-1).argmin()) for image, piece in enumerate(pieces)]",
    ),
    (
        "cost_in_columns.py",
        "cost_over_all_images",
        "pairs.append(int(cost[image, :, begin : begin + len(one)].amin(-1).argmin()))",
    ),
]
