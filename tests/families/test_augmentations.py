"""Input pipelines of other libraries under `detscope run`: nearly all of a worker's time has a name."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import planted_transform
from detscope.analyze.step.steps import choose_typical_steps
from detscope.runs.reader import load_run
from planted_transform import PLANTED_S, read_ms

LOOP = """
model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for batch in loader:
    loss = model(batch["img"].float()).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
ALBUMENTATIONS = f"""
import albumentations as A, cv2, torch
from planted_transform import WriteDown, sleep
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Planted(A.ImageOnlyTransform):
    def apply(self, img, **params):
        sleep()
        return img + 1

class Pictures(Dataset):
    def __init__(self):
        self.augment = A.Compose(
            [
                A.RandomResizedCrop((64, 64)),
                A.OneOf([A.GaussNoise(), A.Blur()], p=0.5),
                Planted(p=1.0),
                A.HorizontalFlip(p=0.5),
                A.Normalize(),
            ],
            bbox_params=A.BboxParams(format="pascal_voc", label_fields=["labels"]),
        )

    def __len__(self):
        return 96

    def __getitem__(self, index):
        image = cv2.imread("images/train/0.jpg")
        made = self.augment(image=image, bboxes=[[10, 10, 100, 80]], labels=[1])
        return {{"img": torch.from_numpy(made["image"]).permute(2, 0, 1)}}

loader = DataLoader(Pictures(), batch_size=4, num_workers=2, collate_fn=WriteDown("slept"))
{LOOP}
"""
MOSAIC = f"""
import torch
from planted_transform import WriteDown, sleep
from torch import nn
from torch.utils.data import DataLoader
from ultralytics.cfg import get_cfg
from ultralytics.data import augment, build_yolo_dataset
from ultralytics.data.utils import check_det_dataset

plain = augment.RandomHSV.__call__

def slow(self, labels):
    sleep()
    return plain(self, labels)

augment.RandomHSV.__call__ = slow
settings = get_cfg(overrides=dict(imgsz=64, mosaic=1.0, mixup=0.5, task="detect", mode="train"))
facts = check_det_dataset("data.yaml")
data = build_yolo_dataset(settings, facts["train"], 4, facts, mode="train")
loader = DataLoader(data, batch_size=4, num_workers=2, collate_fn=WriteDown("slept", data.collate_fn))
{LOOP}
"""


def generate_images(folder: Path) -> None:
    """Noise with boxes, in the layout of YOLO."""
    from PIL import Image

    random = np.random.default_rng(0)
    for split, count in (("train", 48), ("val", 2)):
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True)
        for number in range(count):
            pixels = random.integers(0, 255, (96, 128, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / split / f"{number}.jpg")
            (folder / "labels" / split / f"{number}.txt").write_text("0 0.5 0.5 0.3 0.3\n1 0.3 0.3 0.2 0.2\n")
    (folder / "data.yaml").write_text(
        f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [one, other]\n"
    )


def record(folder: Path, *command: str):
    """The loader's figures of a recorded command."""
    generate_images(folder)
    shutil.copy(planted_transform.__file__, folder)
    arguments = [sys.executable, "-m", "detscope", "run", "-q", "--json", "figures.json", *command]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "figures.json").read_text())["loader"]


def slept_ms(folder: Path) -> float:
    run = load_run(folder / "runs" / "latest")
    counted = choose_typical_steps(run.table("steps")).measured
    slept = read_ms(folder / "slept", 2, counted)
    assert min(slept) >= 1e3 * PLANTED_S
    return sum(slept) / len(slept)


def by_class(loader):
    return {one["name"]: one for one in loader["transforms"]}


def test_albumentations_by_transform_with_their_probabilities(tmp_path):
    pytest.importorskip("albumentations")
    (tmp_path / "script.py").write_text(ALBUMENTATIONS)
    loader = record(tmp_path, "script.py")
    found = by_class(loader)
    assert loader["named_share"] >= 0.95
    assert found["Planted"]["ms_per_image"] == pytest.approx(slept_ms(tmp_path), abs=2)
    assert found["Planted"]["inside"] == "Compose"
    assert found["GaussNoise"]["calls_per_image"] + found["Blur"]["calls_per_image"] < 0.8
    assert found["HorizontalFlip"]["applied_per_image"] < found["HorizontalFlip"]["calls_per_image"] == 1
    assert found["cv2.imread"]["kind"] == "decode" and found["cv2.imread"]["calls_per_image"] == 1


def test_the_mosaic_pipeline_of_ultralytics_in_two_workers(tmp_path):
    pytest.importorskip("ultralytics")
    (tmp_path / "script.py").write_text(MOSAIC)
    loader = record(tmp_path, "script.py")
    found = by_class(loader)
    assert {one["where"] for one in loader["transforms"]} == {"worker"}
    assert loader["named_share"] >= 0.95
    assert found["RandomHSV"]["ms_per_image"] == pytest.approx(slept_ms(tmp_path), abs=2)
    assert found["Mosaic"]["calls_per_image"] > 1  # those that are mixed in have their own
    assert {"MixUp", "RandomPerspective", "Format", "RandomFlip"} <= set(found)


def test_yolo_train_as_typed(tmp_path):
    pytest.importorskip("ultralytics")
    typed = (
        "yolo detect train model=yolo26n.yaml data=data.yaml epochs=1 imgsz=64 batch=2 nbs=2 close_mosaic=0"
    )
    loader = record(tmp_path, *typed.split(), "plots=False", f"project={tmp_path}")
    found = by_class(loader)
    assert loader["named_share"] >= 0.95
    assert found["Mosaic"]["where"] == "loop" and found["Mosaic"]["applied_per_image"] == 1
    assert {"RandomPerspective", "RandomHSV", "Format", "cv2.imdecode"} <= set(found)
