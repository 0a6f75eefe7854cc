"""The settings, typed: one class per section of the TOML file, defaults beside their meaning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticKnownError

DeviceName = Annotated[
    str,
    Field(
        pattern=r"^(auto|cpu|mps|(cuda|xpu)(:[0-9]+)?)$",
        description='"auto", "cpu", "cuda", "cuda:0", "xpu" or "mps"',
    ),
]
_LARGEST = 2**32 - 1  # of any whole number: seeds go as far
Precision = Literal["fp32", "bf16", "fp16"]


class SettingsSection(BaseModel):
    """Settings are strict: unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _bounded(cls, value: object) -> object:
        """More than that nobody waits for, and run.json could not hold it."""
        if type(value) is int and value > _LARGEST:
            raise PydanticKnownError("less_than_equal", {"le": _LARGEST})
        return value


class TrainingSettings(SettingsSection):
    """`[training]`: the loop."""

    num_epochs: int = Field(default=1, ge=1, description="passes over the data set")
    steps: int | None = Field(default=None, ge=1, description="measured steps; caps or extends the epochs")
    warmup_steps: int = Field(default=3, ge=0, description="steps before measuring begins, kept apart")
    batch_size: int = Field(default=2, ge=1, description="images per step")
    prefetch_factor: int | None = Field(default=None, ge=1, description="batches each worker prepares ahead")
    num_workers: int = Field(default=2, ge=0, description="loader processes; 0 loads in the loop itself")
    device: DeviceName = "auto"
    precision: Precision = "fp32"
    channels_last: bool = False
    pin_memory: bool | None = Field(
        default=None, description="None: pinned where the device reads pinned memory"
    )
    threads: int | None = Field(
        default=None, ge=1, le=4096, description="CPU threads of the loop; None: torch decides"
    )
    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="of weights, data and order")
    optimizer: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = Field(default=0.005, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=5e-4, ge=0)
    schedule: Literal["step", "cosine", "constant"] = "step"
    schedule_step_epochs: int = Field(default=3, ge=1)
    schedule_gamma: float = Field(default=0.1, gt=0, le=1)
    lr_warmup_steps: int = Field(default=0, ge=0, description="linear warm-up of the learning rate, in steps")
    clip_gradients: float | None = Field(
        default=None, gt=0, description="largest norm of all gradients together; None: not clipped"
    )
    fused_optimizer: bool = Field(default=False, description="one kernel updates all parameters")
    ema_decay: float | None = Field(
        default=None, gt=0, lt=1, description="keep an average of the weights and evaluate that; None: no"
    )
    checkpoints: bool | None = Field(
        default=None, description="after every epoch; None: with --eval-every or more than one epoch"
    )
    resume: str | None = Field(default=None, min_length=1, description="continue this run's training")
    recipe: bool = Field(
        default=True, description="with --eval-every, what is not set here is as the model's recipe says"
    )
    tensorboard: bool = Field(default=False, description="write TensorBoard files into the run's tb/")
    recompute: list[str] = Field(
        default=[], description="modules whose activations are computed again in backward, not kept"
    )
    ranks: int = Field(default=1, ge=1, description="processes on each node, one CUDA device each")
    nodes: int = Field(default=1, ge=1, description="hosts; the same command is started on each")
    rendezvous: str | None = Field(
        default=None, pattern=r"^.+:[0-9]{1,5}$", description="where nodes meet: HOST:PORT of one of them"
    )
    rank_timeout_s: int = Field(
        default=600, ge=1, description="seconds a rank waits for the others before the run fails"
    )
    find_unused_parameters: bool = Field(
        default=False, description="ranks: for models in which a step may leave parameters out"
    )


class ModelSettings(SettingsSection):
    """`[model]`: what is measured."""

    name: str = Field(default="fasterrcnn_resnet50_fpn", min_length=1, description="see `detscope models`")
    weights: str = Field(default="auto", min_length=1, description='"auto", "coco", "none" or a file')
    num_classes: int | None = Field(default=None, ge=2, description="with background; None: as the data set")
    image_size: int | None = Field(default=None, ge=32, description="overrides the model's own input size")
    trainable_layers: int | None = Field(default=None, ge=0)


class DataSettings(SettingsSection):
    """`[data]`: on what."""

    name: str = Field(
        default="synthetic",
        min_length=1,
        description='"synthetic", "pets", "voc", "coco", or a folder of your own',
    )
    root: str = Field(default="data", min_length=1, description="where data sets live")
    images: int | None = Field(default=None, ge=1, description="use at most this many images")
    image_width: int = Field(default=320, ge=32, description="synthetic images")
    image_height: int = Field(default=256, ge=32, description="synthetic images")
    max_objects: int = Field(
        default=6, ge=1, le=1000, description="synthetic: objects per image, 1 to this many"
    )
    pet_classes: Literal["breeds", "one"] = "breeds"
    on_bad_data: Literal["stop", "skip"] = "stop"
    held_out: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="a folder without splits of its own: share of images kept for evaluation",
    )
    flip: bool = Field(default=False, description="training: mirror every second image, left to right")
    scales: list[Annotated[int, Field(ge=32)]] = Field(
        default=[], description="training: short sides in pixels, one drawn per image; empty: own size"
    )
    max_size: int = Field(default=1333, ge=32, description="longest side that `scales` may give")
    group_by_aspect: bool = Field(
        default=False, description="training: batches of images alike in shape, so that less is padded"
    )


class RecordSettings(SettingsSection):
    """`[record]`: what listens, and how closely."""

    level: Literal["phases", "modules", "ops"] = "modules"
    modules: str = Field(
        default="all",
        pattern=r"^(all|leaf|none|[1-9][0-9]?)$",
        description='"all", "leaf", "none" or a depth such as "2"',
    )
    ops_steps: int = Field(default=3, ge=1, description="steps recorded operator by operator")
    bare_every: int = Field(
        default=4, ge=0, description="one of so many steps, drawn at random, runs unrecorded; 0: never"
    )
    memory: bool = Field(default=False, description="record memory block by block, in steps of their own")
    memory_steps: int = Field(default=5, ge=1, description="how many such steps, on top of the others")
    census: bool = Field(
        default=False,
        description="count waits and launches by line, in steps of their own; at level ops it is done anyway",
    )
    census_steps: int = Field(default=3, ge=1, description="how many such steps, on top of the others")
    telemetry_hz: float = Field(default=2.0, ge=0, le=100, description="0 switches telemetry off")
    traced_steps: int = Field(
        default=8,
        ge=0,
        description="first steps drawn into timeline and trace; the median and the slowest are added",
    )

    @field_validator("modules", mode="before")
    @classmethod
    def _depth_as_text(cls, value: object) -> object:
        """`modules = 2` in a file means the depth "2"; nobody should have to quote a number."""
        return str(value) if type(value) is int else value


class InferenceSettings(SettingsSection):
    """`[inference]`: which images go through the detector, and how."""

    images: list[str] = Field(
        default=[], description="files, folders, globs or a data set's name; none: generated images"
    )
    limit: int | None = Field(default=None, ge=1, description="measure at most this many images")
    repeat: int = Field(default=1, ge=1, description="passes over the images")
    batch_size: int = Field(default=1, ge=1, description="images per forward pass")
    warmup_steps: int = Field(default=3, ge=0, description="passes before measuring begins, kept apart")
    device: DeviceName = "auto"
    precision: Precision = "fp32"
    threads: int | None = Field(default=None, ge=1, le=4096, description="CPU threads; None: torch decides")
    score: float = Field(default=0.7, ge=0, le=1, description="detections below it are not drawn")
    stages: list[str] = Field(default=[], description='stages of one\'s own: "NAME=module.path"')
    tensorboard: bool = Field(default=False, description="write TensorBoard files into the run's tb/")


class EvaluationSettings(SettingsSection):
    """`[evaluation]`: accuracy on images that are not trained on."""

    every: int | None = Field(default=None, ge=1, description="evaluate after every n-th epoch; None: never")
    images: int | None = Field(default=None, ge=1, description="use at most this many images")
    split: Literal["train", "val"] = Field(default="val", description="`detscope eval`: which images")
    detections: str | None = Field(
        default=None, min_length=1, description="`detscope eval`: a COCO results file instead of a model"
    )


class OutputSettings(SettingsSection):
    """`[output]`: where results go."""

    runs: str = Field(default="runs", min_length=1, description="folder of run folders")


class Settings(SettingsSection):
    """A whole configuration file."""

    training: TrainingSettings = TrainingSettings()
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    inference: InferenceSettings = InferenceSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    record: RecordSettings = RecordSettings()
    output: OutputSettings = OutputSettings()

    def with_section(self, name: str, **changes: Any) -> Settings:
        """The same settings with some keys of a section changed, unchecked."""
        return self.model_copy(update={name: getattr(self, name).model_copy(update=changes)})
