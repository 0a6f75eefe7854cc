"""Planted scripts: their rule, and the text of the line that has to be named."""

PLANTED = [
    ("average_of_weights.py", "average_of_weights", "kept += (1 - decay) * weights[name].detach()"),
    ("inplace_clone.py", "inplace_clone", "return self.activation(self.conv(images))"),
    (
        "deterministic_fill.py",
        "deterministic_fill",
        "torch.use_deterministic_algorithms(True, warn_only=True)",
    ),
    ("scaler_with_bf16.py", "scaler_with_bf16", "scaler.step(optimizer)"),
    ("float_batches.py", "float_batches", "images = images.to(device, non_blocking=True)"),
    ("padded_boxes.py", "padded_boxes", "padded = torch.zeros(len(boxes), 200, 4, device=device)"),
    ("padded_collate.py", "padded_boxes", "padded = torch.zeros(len(boxes), 200, 5)"),
    ("nms_per_class.py", "nms_per_class", "chosen = nms(boxes, scores[:, label], 0.5)"),
    ("float_transforms.py", "float_transforms", "v2.ToDtype(torch.float32, scale=True),"),
    ("float_functions.py", "float_transforms", "image = F.convert_image_dtype(image, torch.float32)"),
    ("evaluation_in_step.py", "evaluation_in_step", "scores = model(images)[..., 4:].softmax(-1)"),
    ("parameter_groups.py", "parameter_groups", "optimizer.step()"),
    ("fused_optimizer.py", "fused_optimizer", "optimizer.step()"),
]
