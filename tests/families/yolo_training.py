"""Training as Ultralytics documents it, on images made here; with `callback` it records itself."""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from ultralytics import YOLO

torch.set_num_threads(1)  # of a machine that tests share
images = int(sys.argv[1])
folder = Path("squares").absolute()
random = np.random.default_rng(0)
for split, count in (("train", images), ("val", 4)):
    for kind in ("images", "labels"):
        (folder / kind / split).mkdir(parents=True)
    for number in range(count):
        pixels = random.integers(0, 255, (64, 64, 3), dtype=np.uint8)
        pixels[16:48, 16:48] = 255
        Image.fromarray(pixels).save(folder / "images" / split / f"{number}.png")
        (folder / "labels" / split / f"{number}.txt").write_text("0 0.5 0.5 0.5 0.5\n")
described = folder / "data.yaml"
described.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames:\n  0: square\n")

yolo = YOLO("yolo11n.yaml")
recording = None
if sys.argv[-1] == "callback":
    from detscope.integrations.ultralytics import attach

    recording = attach(yolo, quiet=True)
yolo.train(
    data=str(described),
    epochs=1,
    imgsz=64,
    batch=2,
    nbs=2,
    workers=0,
    plots=False,
    device="cpu",
    project=str(folder / "out"),
)
if recording is not None:
    assert recording.run is not None
