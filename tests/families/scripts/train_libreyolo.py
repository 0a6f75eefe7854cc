"""Train a detector of libreyolo for one epoch: its kind, its size, the side of images, the data."""

import importlib
import sys

kind, size, side, data = sys.argv[1:]
names = {"yolo9": "LibreYOLO9", "yolox": "LibreYOLOX", "dfine": "LibreDFINE"}
library = importlib.import_module(f"libreyolo.models.{kind}.model")
model = getattr(library, names[kind])(None, size=size, nb_classes=3, device="cpu")
model.train(data=data, epochs=1, imgsz=int(side), batch=2, workers=0, device="cpu")
