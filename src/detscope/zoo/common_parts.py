"""What any step may do beside its model, by the names that libraries have for it.

Names are those of parts of the phases `optimizer` and `other`. A library that is not loaded has no part in a
script, and none is ever imported for this.
"""

from __future__ import annotations

from detscope.zoo.contract import Stage
from detscope.zoo.family import name_stages

_SCHEDULERS = (
    "LRScheduler",
    "ReduceLROnPlateau",
    "SequentialLR",
    "ChainedScheduler",
    "CosineAnnealingWarmRestarts",
)
_WRITTEN = ("add_scalar", "add_scalars", "add_image", "add_images", "add_histogram", "add_figure", "flush")

COMMON_PARTS: tuple[Stage, ...] = (
    *name_stages(
        ("ema", "torch.optim.swa_utils:AveragedModel.update_parameters"),
        ("ema", "timm.utils.model_ema:ModelEma.update"),
        ("ema", "timm.utils.model_ema:ModelEmaV2.update"),
        ("ema", "timm.utils.model_ema:ModelEmaV3.update"),
        ("ema", "ema_pytorch.ema_pytorch:EMA.update"),
        ("ema", "diffusers.training_utils:EMAModel.step"),
        ("ema", "detscope.loops.ema:WeightAverage.add_step"),
        ("metrics", "torchmetrics.metric:Metric.forward"),
        ("metrics", "torchmetrics.collections:MetricCollection.update"),
        ("metrics", "pycocotools.cocoeval:COCOeval.evaluate"),
        ("metrics", "pycocotools.cocoeval:COCOeval.accumulate"),
        ("logging", "logging:Logger.handle"),
        ("logging", "tqdm.std:tqdm.update"),
        ("logging", "tqdm.std:tqdm.refresh"),
        ("logging", "wandb.sdk.wandb_run:Run.log"),
        # of functions what they call inside: a script may hold, and pickle, the function itself
        ("checkpoint", "torch.serialization:_save"),
        ("checkpoint", "torch.serialization:_legacy_save"),
        ("checkpoint", "safetensors.torch:serialize_file"),
        ("callbacks", "transformers.trainer_callback:CallbackHandler.call_event"),
        ("callbacks", "lightning.pytorch.trainer.call:_call_callback_hooks"),
        ("callbacks", "pytorch_lightning.trainer.call:_call_callback_hooks"),
        ("callbacks", "ultralytics.engine.trainer:BaseTrainer.run_callbacks"),
    ),
    *(Stage("lr_schedule", f"torch.optim.lr_scheduler:{name}.step") for name in _SCHEDULERS),
    *(Stage("logging", f"torch.utils.tensorboard.writer:SummaryWriter.{name}") for name in _WRITTEN),
)
