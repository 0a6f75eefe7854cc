"""Predict image after image with a model of Ultralytics: its name, how many images, ways of its own."""

import sys

import numpy as np
from ultralytics import RTDETR, YOLO

name, images, *ways = sys.argv[1:]
model = (RTDETR if "rtdetr" in name else YOLO)(name)
drawn = np.random.default_rng(0)
for _ in range(int(images)):
    image = drawn.integers(0, 255, (96, 96, 3), dtype=np.uint8)
    model.predict(image, imgsz=64, verbose=False, device="cpu", **({"nms": False} if "top_k" in ways else {}))
