"""What pairs of versions go through beside the trainings of `family_scripts`."""

from __future__ import annotations

from bench.family_scripts import BEGIN, CASES, FamilyCase

YOLO_PREDICT = """
logging.disable(logging.WARNING)
from ultralytics import YOLO

model = YOLO(sys.argv[4].partition(" ")[0] + ".yaml")
for index in range(steps):
    model.predict(f"{data}/images/train/{index % 24:03d}.jpg", imgsz=64, device="cpu", verbose=False)
"""

YOLO_VALIDATE = """
logging.disable(logging.WARNING)
from ultralytics import YOLO

model = YOLO(sys.argv[4].partition(" ")[0] + ".yaml")
model.val(
    data=data + "/data.yaml", split="train", imgsz=64, batch=2, workers=0, device="cpu", plots=False,
    save_json=True, conf=1e-9, verbose=False, project=os.path.dirname(out), exist_ok=True)
"""

LIBREYOLO_TRAIN = """
import importlib

kind = sys.argv[4].partition(" ")[2]
names = {"deim": ("LibreDEIM", "n", 320), "deimv2": ("LibreDEIMv2", "atto", 320)}
names |= {"rtdetr": ("LibreRTDETR", "r18", 320), "rfdetr": ("LibreRFDETR", "n", 128)}
name, size, side = names[kind]
library = importlib.import_module(f"libreyolo.models.{kind}.model")
tables = [one for one in vars(library).values() if isinstance(one, dict)]
for settings in [one for table in tables for one in table.values() if isinstance(one, dict)]:
    if "backbone_pretrained" in settings:  # no hub
        settings["backbone_pretrained"] = False
weights = {} if kind == "rfdetr" else None  # of no weights at all it fetches some
model = getattr(library, name)(weights, size=size, nb_classes=3, device="cpu")
more = {"nbs": 2} if kind == "rfdetr" else {}  # or it takes several batches for a step
model.train(
    data=data + "/data.yaml", epochs=max(1, steps // 12), imgsz=side, batch=2, workers=0, device="cpu",
    **more)
"""

RFDETR_SEGMENT = """
import glob

for path in glob.glob(data + "/*/_annotations.coco.json"):  # boxes as outlines
    whole = json.load(open(path))
    for one in whole["annotations"]:
        left, top, width, height = one["bbox"]
        right, bottom = left + width, top + height
        one["segmentation"] = [[left, top, right, top, right, bottom, left, bottom]]
    json.dump(whole, open(path, "w"))
from rfdetr import RFDETRSegNano

few = {"num_queries": 30, "group_detr": 2}
model = RFDETRSegNano(pretrain_weights=None, device="cpu", num_classes=3, resolution=96, **few)
model.train(
    dataset_dir=data, epochs=max(1, steps // 12), batch_size=2, grad_accum_steps=1, num_workers=0,
    output_dir=os.path.dirname(out), device="cpu", tensorboard=False, multi_scale=False,
    expanded_scales=False, run_test=False)
"""

RFDETR_PREDICT = """
from PIL import Image
from rfdetr import RFDETRNano

model = RFDETRNano(pretrain_weights=None, device="cpu", num_classes=3, num_queries=30, resolution=64)
for index in range(steps):
    model.predict(Image.open(f"{data}/train/{index % 24:03d}.jpg"))
"""


def _libreyolo(name: str) -> FamilyCase:
    return FamilyCase(f"libreyolo {name}", "its own", BEGIN + LIBREYOLO_TRAIN, "", "libreyolo", "yolo")


ALL_CASES = (
    *CASES,
    FamilyCase("yolo26n predicts", "Ultralytics", BEGIN + YOLO_PREDICT, "", "ultralytics", "yolo"),
    FamilyCase(
        "yolov8n-seg validates", "Ultralytics", BEGIN + YOLO_VALIDATE, "", "ultralytics", "yolo segment"
    ),
    *(_libreyolo(name) for name in ("deim", "deimv2", "rtdetr", "rfdetr")),
    FamilyCase("rfdetr seg nano", "its own", BEGIN + RFDETR_SEGMENT, "", "rfdetr", "coco"),
    FamilyCase("rfdetr nano predicts", "its own", BEGIN + RFDETR_PREDICT, "", "rfdetr", "coco"),
)
