"""Train RF-DETR nano for one epoch on a folder, with few queries: a CPU takes seconds for all of them."""

import sys

from rfdetr import RFDETRNano

model = RFDETRNano(
    pretrain_weights=None, device="cpu", num_classes=3, resolution=64, num_queries=30, group_detr=2
)
model.train(
    dataset_dir=sys.argv[1],
    epochs=1,
    batch_size=2,
    grad_accum_steps=1,
    num_workers=0,
    output_dir="out",
    device="cpu",
    tensorboard=False,
    multi_scale=False,
    expanded_scales=False,
    run_test=False,
)
