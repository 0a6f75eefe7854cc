"""A detector over a set of images, nothing trained.

detscope run examples/evaluation_only.py
"""

import sys

import torch
from torchvision.models.detection import retinanet_resnet50_fpn

IMAGES = int(sys.argv[1]) if len(sys.argv) > 1 else 12

torch.manual_seed(0)
model = retinanet_resnet50_fpn(
    weights=None, weights_backbone=None, num_classes=3, min_size=96, max_size=128, detections_per_img=20
)
model.eval()
loader = torch.utils.data.DataLoader(
    [torch.rand(3, 96, 96 + 8 * (number % 4)) for number in range(IMAGES)], batch_size=1, collate_fn=list
)

found = 0
with torch.no_grad():
    for images in loader:
        for detections in model(images):
            found += int((detections["scores"] > 0.05).sum())
print(f"{found} boxes in {IMAGES} images")
