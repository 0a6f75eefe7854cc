"""Train a tiny Mask R-CNN on generated shapes for two minutes, then draw what it finds in new ones.

python examples/draw_trained.py [FOLDER] [STEPS]
"""

import sys
import tempfile
from pathlib import Path

import torch

from detscope.config.schema import DataSettings, TrainingSettings
from detscope.data.loading import build_loader
from detscope.data.registry import class_names, open_dataset
from detscope.loops.train import LearningRate, TrainHooks, TrainPlan, train_model
from detscope.report.drawing import Picture, save_pictures
from detscope.zoo.contract import BuildOptions
from detscope.zoo.registry import build_model

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "drawn")
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 350
names = class_names("synthetic", 6)


def show_progress(step, losses):
    if step % 50 == 0:
        print(f"step {step}: loss {losses['loss']:.2f}", flush=True)


def picture(model, image, name):
    """What the model finds in an image; a mask is where its probability is above one half."""
    found = {key: value.numpy() for key, value in model([image])[0].items()}
    sure = found["scores"] > 0.7
    pixels = (image * 255).round().byte().permute(1, 2, 0).numpy()
    labels = [names[label] for label in found["labels"][sure]]
    masks = found["masks"][sure][:, 0] > 0.5
    return Picture(name, pixels, found["boxes"][sure], labels, found["scores"][sure], masks)


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as root:
    settings = DataSettings(root=root, images=256, image_width=160, image_height=128)
    shapes = open_dataset(settings, need_masks=True)
    loader = build_loader(shapes, TrainingSettings(batch_size=4, num_workers=0), "cpu", seed=0).loader
    model = build_model("tiny_maskrcnn", BuildOptions(num_classes=len(names), weights="none")).module
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    plan = TrainPlan(max_steps=steps, repeat_until_max=True)
    train_model(
        model, loader, optimizer, plan, LearningRate(warmup_steps=20), TrainHooks(on_losses=show_progress)
    )
    fresh = open_dataset(settings.model_copy(update={"images": 6}), need_masks=True, split="val")
    model.eval()
    with torch.inference_mode():
        pictures = [picture(model, fresh[index][0], fresh.image_name(index)) for index in range(len(fresh))]
    print(*save_pictures(folder, pictures), sep="\n")
