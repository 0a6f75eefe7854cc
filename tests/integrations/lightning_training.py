"""A detector of torchvision in Lightning's Trainer; with `callback` it records itself."""

import sys

import lightning
import torch
from plain_loop import Squares, collate
from torch.utils.data import DataLoader
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn


class Detector(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = fasterrcnn_mobilenet_v3_large_320_fpn(
            weights=None,
            weights_backbone=None,
            num_classes=2,
            min_size=96,
            max_size=96,
            box_batch_size_per_image=16,
        )

    def training_step(self, batch, _index):
        losses = self.network(*batch)
        self.log_dict(losses)
        return sum(losses.values())

    def validation_step(self, batch, _index):
        self.network(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.002)


callbacks = []
if sys.argv[-1] == "callback":
    from detscope.integrations.lightning import LightningRecording

    callbacks.append(LightningRecording(quiet=True))
torch.manual_seed(0)
steps = int(sys.argv[1])
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=1,
    accumulate_grad_batches=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=callbacks,
)
trainer.fit(
    Detector(),
    DataLoader(Squares(4 * steps, 96), batch_size=2, collate_fn=collate),
    DataLoader(Squares(4, 96), batch_size=2, collate_fn=collate),
)
