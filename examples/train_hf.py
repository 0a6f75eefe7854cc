"""A detector of transformers in its Trainer: gradients of four batches per step, evaluation after each pass.

detscope run examples/train_hf.py
"""

import sys
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    RTDetrConfig,
    RTDetrForObjectDetection,
    RTDetrResNetConfig,
    Trainer,
    TrainingArguments,
)

SIZE = 128


class Squares(Dataset):
    """Noise with one to three bright squares to find; boxes as shares of the image: center, width, height."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, SIZE, SIZE, generator=generator)
        boxes = 0.25 + 0.5 * torch.rand(1 + index % 3, 2, generator=generator)
        for x, y in (boxes * SIZE).int().tolist():
            image[:, y - 16 : y + 16, x - 16 : x + 16] = 1.0
        boxes = torch.cat([boxes, torch.full_like(boxes, 0.25)], dim=1)
        labels = torch.zeros(len(boxes), dtype=torch.int64)
        return {"pixel_values": image, "labels": {"boxes": boxes, "class_labels": labels}}


def collate(samples):
    images = torch.stack([sample["pixel_values"] for sample in samples])
    return {"pixel_values": images, "labels": [sample["labels"] for sample in samples]}


def make_model():
    backbone = RTDetrResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = RTDetrConfig(
        backbone_config=backbone,
        num_labels=1,
        encoder_hidden_dim=32,
        encoder_in_channels=[32, 48, 64],
        feat_strides=[8, 16, 32],
        encoder_ffn_dim=64,
        encoder_attention_heads=4,
        d_model=32,
        num_queries=30,
        decoder_in_channels=[32, 32, 32],
        decoder_ffn_dim=64,
        decoder_layers=2,
        decoder_attention_heads=4,
        num_denoising=10,
    )
    return RTDetrForObjectDetection(config)


def main(callbacks=()):
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        max_steps=steps,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        logging_steps=5,
        remove_unused_columns=False,
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(
        model=make_model(),
        args=arguments,
        train_dataset=Squares(4 * 2 * 6),
        eval_dataset=Squares(8),
        data_collator=collate,
        callbacks=list(callbacks),
    )
    trainer.train()


if __name__ == "__main__":
    main()
