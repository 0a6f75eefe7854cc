"""Prediction as transformers documents it: processor, model, boxes; no loader and nothing of detscope in it.

detscope run examples/predict_hf.py
"""

import sys

import torch
from PIL import Image
from train_hf import SIZE, Squares, make_model
from transformers import RTDetrImageProcessor

BATCH = 2


def main():
    batches = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    torch.manual_seed(0)
    model = make_model().eval()
    processor = RTDetrImageProcessor(size={"height": SIZE, "width": SIZE})
    samples = Squares(BATCH * batches)
    found = 0
    for first in range(0, len(samples), BATCH):
        arrays = [samples[first + number]["pixel_values"] for number in range(BATCH)]
        images = [Image.fromarray((array * 255).byte().permute(1, 2, 0).numpy()) for array in arrays]
        inputs = processor(images=images, return_tensors="pt")
        with torch.no_grad():
            outputs = model(**inputs)
        sizes = [(image.height, image.width) for image in images]
        results = processor.post_process_object_detection(outputs, threshold=0.3, target_sizes=sizes)
        found += sum(len(result["scores"]) for result in results)
    print(f"{found} boxes in {len(samples)} images")


if __name__ == "__main__":
    main()
