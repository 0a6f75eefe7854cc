"""Trainings and predictions as users of each library write them: random weights, drawn images, no hub.

Every script is called with a file for its times, the number of steps, and a folder of drawn images. It knows
nothing of what records it; times are taken after every optimizer step, or around every prediction.

Images have sides of 320 pixels, half of what users take, because what recording costs follows from how many
modules there are and not from how much they do; networks that would take seconds at that have less.

Two things would tell a plain process from a recorded one that have nothing to do with recording, and both
processes do without: a whole garbage collection of what was imported takes as long as five steps and falls
among those that are compared, or before them; and a process with a single thread, which none is that trains
for real, is some per cent faster, because the C library and torch leave locks out. Whether memory that is
freed goes back to the system is luck of where it lies; it stays in both (`STEADY`).
"""

from __future__ import annotations

from dataclasses import dataclass

BEGIN = """
import atexit, gc, json, logging, os, sys, threading, time, warnings

warnings.simplefilter("ignore")
out, steps, data = sys.argv[1], int(sys.argv[2]), sys.argv[3]
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

torch.manual_seed(0)
threading.Thread(target=threading.Event().wait, daemon=True).start()


class Times(list):
    def append(self, now):
        super().append(now)
        if len(self) == 4:  # the warm-up ends
            gc.collect()
            gc.freeze()
            meet(os.environ.get("MEETING"))


def meet(folder):  # who runs at the same time: cores share caches, so all compared steps have company
    if folder:
        open(f"{folder}/{os.getpid()}", "w").close()
        until = time.monotonic() + 120
        while len(os.listdir(folder)) < 2 and time.monotonic() < until:
            time.sleep(0.001)


times = Times()
atexit.register(lambda: json.dump(times, open(out, "w")))
register_optimizer_step_post_hook(lambda *_: times.append(time.perf_counter()))
"""

TRANSFORMERS = """
import transformers as t

t.logging.set_verbosity_error()


def resnet(kind, features):
    return kind(embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1], layer_type="basic",
                out_features=features)


last_three = ["stage2", "stage3", "stage4"]
plain = {"use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False}
small = {"d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "num_labels": 3}
hybrid = {**small, "encoder_hidden_dim": 64, "decoder_in_channels": [64] * 3, "decoder_layers": 3,
          "num_queries": 100, "num_denoising": 20}


def make_model(name):
    if name == "rt_detr_v2":
        backbone = resnet(t.RTDetrResNetConfig, last_three)
        config = t.RTDetrV2Config(backbone_config=backbone, encoder_in_channels=[32, 64, 128], **hybrid)
        return t.RTDetrV2ForObjectDetection(config)
    if name == "d_fine":
        widths = [32, 64, 128, 256]
        backbone = t.HGNetV2Config(
            stem_channels=[3, 16, 16], stage_in_channels=[16, 32, 64, 128],
            stage_mid_channels=[16, 16, 32, 64], stage_out_channels=widths, stage_num_blocks=[1] * 4,
            stage_downsample=[False, True, True, True], stage_light_block=[False, False, True, True],
            stage_kernel_size=[3, 3, 5, 5], stage_numb_of_layers=[2] * 4, embedding_size=16,
            hidden_sizes=widths, depths=[1] * 4, out_features=last_three)
        config = t.DFineConfig(backbone_config=backbone, encoder_in_channels=widths[1:], **hybrid)
        return t.DFineForObjectDetection(config)
    two = {"encoder_layers": 2, "decoder_layers": 2, "num_queries": 50, "auxiliary_loss": True}
    if name == "deformable_detr":
        backbone = resnet(t.ResNetConfig, last_three)
        return t.DeformableDetrForObjectDetection(
            t.DeformableDetrConfig(backbone_config=backbone, **plain, **small, **two))
    if name == "detr":
        backbone = resnet(t.ResNetConfig, ["stage4"])
        return t.DetrForObjectDetection(t.DetrConfig(backbone_config=backbone, **plain, **small, **two))
    return t.YolosForObjectDetection(t.YolosConfig(
        hidden_size=96, num_hidden_layers=4, num_attention_heads=4, intermediate_size=192,
        image_size=[320, 320], num_detection_tokens=50, num_labels=3))


class Drawn(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * steps

    def __getitem__(self, index):
        dice = torch.Generator().manual_seed(index)
        boxes = torch.rand(5, 4, generator=dice) * 0.3 + 0.3
        return {"pixel_values": torch.rand(3, 320, 320, generator=dice),
                "labels": {"class_labels": torch.randint(0, 3, (5,), generator=dice), "boxes": boxes}}


def collate(items):
    return {"pixel_values": torch.stack([one["pixel_values"] for one in items]),
            "labels": [one["labels"] for one in items]}


model = make_model(sys.argv[4])
"""

HF_TRAIN = """
from transformers import Trainer, TrainingArguments

arguments = TrainingArguments(
    output_dir=os.path.dirname(out), per_device_train_batch_size=2, max_steps=steps, report_to=[],
    save_strategy="no", logging_strategy="no", remove_unused_columns=False, disable_tqdm=True, use_cpu=True)
Trainer(model=model, args=arguments, train_dataset=Drawn(), data_collator=collate).train()
"""

HF_PREDICT = """
model.eval()
with torch.inference_mode():
    for index in range(steps):
        model(pixel_values=Drawn()[index]["pixel_values"][None])
        times.append(time.perf_counter())
"""

YOLO_TRAIN = """
logging.disable(logging.WARNING)
from ultralytics import RTDETR, YOLO

# older versions want RT-DETR by its own class, and no fewer places in an image than queries
kind, side = (RTDETR, 160) if sys.argv[4].startswith("rtdetr") else (YOLO, 320)
kind(sys.argv[4] + ".yaml").train(
    data=data + "/data.yaml", epochs=max(1, steps // 12), imgsz=side, batch=2, nbs=2, workers=0, plots=False,
    val=False, device="cpu", amp=False, verbose=False, project=os.path.dirname(out), exist_ok=True)
"""

YOLO_PREDICT = """
logging.disable(logging.WARNING)
from ultralytics import YOLO

model = YOLO(sys.argv[4] + ".yaml")
for index in range(steps):
    model.predict(f"{data}/images/train/{index % 24:03d}.jpg", imgsz=320, device="cpu", verbose=False)
    times.append(time.perf_counter())
"""

LIBREYOLO_TRAIN = """
import importlib

kind = sys.argv[4].partition(" ")[2]
names = {"yolo9": ("LibreYOLO9", "t", 320), "yolox": ("LibreYOLOX", "n", 320)}
names["dfine"] = ("LibreDFINE", "n", 320)
name, size, side = names[kind]
library = importlib.import_module(f"libreyolo.models.{kind}.model")
model = getattr(library, name)(None, size=size, nb_classes=3, device="cpu")
epochs = max(1, steps // 12)
model.train(data=data + "/data.yaml", epochs=epochs, imgsz=side, batch=2, workers=0, device="cpu")
"""

RFDETR_TRAIN = """
from rfdetr import RFDETRNano

few = {"num_queries": 30, "group_detr": 2}  # of all of them a CPU has for seconds
model = RFDETRNano(pretrain_weights=None, device="cpu", num_classes=3, resolution=64, **few)
model.train(
    dataset_dir=data, epochs=max(1, steps // 12), batch_size=2, grad_accum_steps=1, num_workers=0,
    output_dir=os.path.dirname(out), device="cpu", tensorboard=False, multi_scale=False,
    expanded_scales=False, run_test=False)
"""

ZOO_TRAIN = """
from detscope.zoo.registry import build_model

model = build_model(sys.argv[4]).module.train()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for index in range(steps):
    images = [torch.rand(3, 320, 320) for _ in range(2)]
    boxes = torch.tensor([[10.0, 10.0, 60.0, 70.0], [40.0, 30.0, 110.0, 100.0]])
    targets = [{"boxes": boxes, "labels": torch.tensor([1, 2]), "masks": torch.ones(2, 320, 320).byte(),
                "keypoints": torch.ones(2, 17, 3)} for _ in images]
    loss = sum(model(images, targets).values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

ZOO_PREDICT = """
from detscope.zoo.registry import build_model

model = build_model(sys.argv[4]).module.eval()
with torch.inference_mode():
    for index in range(steps):
        model([torch.rand(3, 320, 320)])
        times.append(time.perf_counter())
"""


@dataclass(frozen=True)
class FamilyCase:
    """A network in the trainer its users have."""

    name: str  # as its library calls it
    trainer: str
    train: str
    predict: str  # "": not tried
    library: str  # that has to be there
    data: str = ""  # kind of drawn data set: yolo, coco


def _hf(name: str) -> FamilyCase:
    begin = BEGIN + TRANSFORMERS
    return FamilyCase(name, "HF Trainer", begin + HF_TRAIN, begin + HF_PREDICT, "transformers")


def _yolo(name: str) -> FamilyCase:
    return FamilyCase(name, "Ultralytics", BEGIN + YOLO_TRAIN, BEGIN + YOLO_PREDICT, "ultralytics", "yolo")


def _libreyolo(name: str) -> FamilyCase:
    return FamilyCase(f"libreyolo {name}", "its own", BEGIN + LIBREYOLO_TRAIN, "", "libreyolo", "yolo")


def _zoo(name: str) -> FamilyCase:
    return FamilyCase(name, "plain loop", BEGIN + ZOO_TRAIN, BEGIN + ZOO_PREDICT, "torchvision")


ZOO = ("fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet", "fcos", "ssd", "ssdlite", "efficientdet")
CASES = (
    *(_yolo(name) for name in ("yolov8n", "yolo11n", "yolo12n", "yolo26n", "rtdetr-l")),
    *(_libreyolo(name) for name in ("yolo9", "yolox", "dfine")),
    FamilyCase("rfdetr nano", "its own", BEGIN + RFDETR_TRAIN, "", "rfdetr", "coco"),
    *(_hf(name) for name in ("rt_detr_v2", "d_fine", "deformable_detr", "detr", "yolos")),
    *(_zoo(f"tiny_{name}") for name in ZOO),
)
