"""What run.json may say: the types of every key that somebody reads. Unknown keys are nobody's business.

A run is checked once, when it is opened; whoever reads it afterwards needs no guards.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

LARGEST = 2**53  # of whole numbers that every reader of JSON agrees on
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Whole = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Request = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # of memory that nobody has: as much as a size can say
Number = float  # whole numbers are taken, too
Texts = list[str]


class ModelInfo(TypedDict, total=False):
    """The network."""

    name: str | None
    family: str | None
    source: str | None
    parameters: Count | None
    tensors: Count | None
    one_to_one_head: bool | None


class OptimizerInfo(TypedDict, total=False):
    """An optimizer that stepped: how its parameters are grouped, and how it goes over them."""

    name: str | None
    groups: Count | None
    different_groups: Count | None
    tensors: Count | None
    parameters: Count | None
    way: str | None
    way_given: bool


class WeightsInfo(TypedDict, total=False):
    """Where its weights come from."""

    kind: str | None
    source: str | None
    note: str | None
    replaced: Texts | None


class DataInfo(TypedDict, total=False):
    """What it was fed."""

    name: str | None
    images: Count | None
    classes: Count | None
    split: str | None


class ProcessorInfo(TypedDict, total=False):
    """The machine's processor."""

    model: str | None
    usable_cores: Number | None
    logical_cores: Number | None


class GpuInfo(TypedDict, total=False):
    """One of the machine's GPUs."""

    name: str | None


class GpusInfo(TypedDict, total=False):
    """All of them, or why none is known."""

    devices: list[GpuInfo] | None
    reason: str | None


class AcceleratorInfo(TypedDict, total=False):
    """The device that the model ran on."""

    name: str | None
    capability: str | None


class CodeInfo(TypedDict, total=False):
    """The commit of the folder it was started in, and a mark of its tracked files."""

    commit: str | None
    files: str | None


class EnvironmentInfo(TypedDict, total=False):
    """Facts about the machine."""

    packages: dict[str, str | None] | None
    cpu: ProcessorInfo | None
    gpus: GpusInfo
    accelerator: AcceleratorInfo | None
    threads: dict[str, Count | None] | None
    code: CodeInfo | None


class OperatorsInfo(TypedDict, total=False):
    """The window of operators."""

    steps: Annotated[int, Meta(ge=1, le=LARGEST)] | None
    backward_attributed: Number | None
    kernels_unlinked: Count | None


class DeviceClockInfo(TypedDict, total=False):
    """Marks in the device's queue, or why there are none."""

    source: str | None
    marks_per_step: Number | None
    mark_cost_ns: Number | None
    below_mark: Texts | None
    unmarked: Texts | None
    why: str | None


class PeakInfo(TypedDict):
    """The machine's roof."""

    peak_flops_per_s: Annotated[float, Meta(gt=0)]
    bandwidth_bytes_per_s: Annotated[float, Meta(gt=0)]
    device: NotRequired[str | None]
    threads: NotRequired[Count | None]
    definition: NotRequired[str | None]


class CostsInfo(TypedDict, total=False):
    """Counted arithmetic."""

    images: Count | None
    peak: PeakInfo | None
    why: str | None


class PeakPlaceInfo(TypedDict, total=False):
    """Where in the model something was."""

    operator: str | None
    module: str | None
    stage: str | None


class MemoryPartInfo(TypedDict, total=False):
    """Memory of a stage, a module or a block."""

    name: str | None
    path: str | None
    depth: Count | None
    bytes: Number | None
    peak_bytes: Number | None
    allocated_bytes: Number | None
    freed_bytes: Number | None


class MemoryInfo(TypedDict, total=False):
    """What the recorder says of its account of memory."""

    what: str | None
    why: str | None
    definition: str | None
    passes: Count | None
    peak_bytes: Number | None
    allocated_bytes: Number | None
    freed_bytes: Number | None
    peak_at: PeakPlaceInfo | None
    stages: list[MemoryPartInfo] | None
    modules: list[MemoryPartInfo] | None
    largest: list[MemoryPartInfo] | None
    steps: list[Whole] | None
    live_bytes: dict[str, Whole] | None
    unknown_frees: Count | None
    unknown_free_bytes: Count | None
    unseen_frees: Count | None
    own_bytes: Count | None
    unfinished_lost: bool | None


class OutOfMemoryInfo(TypedDict, total=False):
    """The request that failed."""

    step: Count | None
    request_bytes: Request | None
    device: str | None
    phase: str | None
    module: str | None
    operator: str | None
    message: str | None
    time_ns: Whole | None


class TriedAdviceInfo(TypedDict, total=False):
    """A piece of memory advice that was followed."""

    variant: str | None
    predicted_saving_bytes: Number | None
    measured_saving_bytes: Number | None
    error_share: Number | None
    predicted_peak_bytes: Number | None
    peak_bytes: Number | None
    step_ratio: Number | None
    run: str | None
    why: str | None


class ClockReadingInfo(TypedDict):
    """One comparison of two ranks' clocks."""

    time_ns: int
    offset_ns: int
    error_ns: int


class RankInfo(TypedDict, total=False):
    """Who and where a rank is."""

    rank: Count | None
    host: str | None
    device: str | None
    status: str | None
    reason: str | None
    run: str | None
    last_loss: Number | None
    boot: str | None
    one_clock: bool | None
    clock_error_ns: Whole | None
    clocks: list[ClockReadingInfo] | None


class RankMembersInfo(TypedDict, total=False):
    """All ranks of a run."""

    count: Count | None
    members: list[RankInfo] | None
    missing: list[Count] | None


class OwnRankInfo(TypedDict, total=False):
    """The rank whose run this is."""

    rank: Count
    ranks: Count


class OneRankInfo(TypedDict, total=False):
    """The same training on one rank."""

    run: str | None
    images_per_s: Number | None


class AgreementInfo(TypedDict, total=False):
    """Whether ranks have the same weights and loss at the end."""

    weights_equal: bool | None
    loss_equal: bool | None
    losses: list[Number | None] | None
    checksum: str | None
    how: str | None


class SourceInfo(TypedDict, total=False):
    """A file that was recorded elsewhere."""

    file: str | None
    format: str | None
    rank: Count | None
    rows: dict[str, Count] | None
    counts: dict[str, Count] | None


class ScriptPartInfo(TypedDict, total=False):
    """The training or the evaluation of a script."""

    steps: Count | None
    batches: Count | None
    step_p50_ms: Number | None
    total_s: Number | None


ScriptRootInfo = TypedDict(
    "ScriptRootInfo",
    {
        "class": str | None,
        "role": str | None,
        "inside": Texts | None,
        "parameters": Count | None,
        "calls": Count | None,
        "forward_ms": Number | None,
    },
    total=False,
)
ScriptRootInfo.__doc__ = "A model that the script called."


class ScriptFunctionInfo(TypedDict, total=False):
    """A function that was seen running outside of all phases."""

    function: str | None
    file: str | None
    line: Count | None
    looks: Count | None
    share_of_other: Number | None


class ScriptLookInfo(ScriptFunctionInfo, total=False):
    """One of the script's own, with those of packages that ran in it."""

    ms: Number | None
    steps: Count | None
    inside: list[ScriptFunctionInfo] | None


class CodeLineInfo(TypedDict):
    """A line of code."""

    function: str
    file: str
    line: Count


class PartPlaceInfo(TypedDict, total=False):
    """From where a part of a step was called: the script's own line, and one of a package in between."""

    own: CodeLineInfo | None
    inside: CodeLineInfo | None


class ScriptInfo(TypedDict, total=False):
    """A script that was recorded as it is."""

    name: str | None
    exit_code: Whole | str | None
    command: Texts | None
    folder: str | None
    max_steps: Count | None
    roots: list[ScriptRootInfo] | None
    parts: dict[str, ScriptPartInfo] | None
    optimizers: Texts | None
    other: list[ScriptLookInfo] | None


class GrowthHolderInfo(TypedDict, total=False):
    """The variable that keeps what grows."""

    name: str | None
    line: str | None
    kind: str | None
    items: Number | None
    bytes: Number | None
    keeps_graphs: bool | None


class GrowthInfo(TypedDict, total=False):
    """Memory that grew from step to step."""

    bytes_per_step: Number | None
    lowest: Number | None
    highest: Number | None
    first_step: Count | None
    last_step: Count | None
    n: Count | None
    held_by: GrowthHolderInfo | None
    note: str | None


class SkippedImageInfo(TypedDict):
    """An image that could not be measured."""

    file: str
    reason: str


class ResumedInfo(TypedDict, total=False):
    """The run that this one continues."""

    run: str | None
    step: Count | None
    epoch: Count | None
    changed: Texts | None


class HeldOutInfo(TypedDict, total=False):
    """Data that the training did not see."""

    images: Count | None


class VersionInfo(TypedDict):
    """What every version of run.json says."""

    schema: int


class RunInfo(TypedDict, total=False):
    """The whole of run.json."""

    schema: int
    verb: str | None
    status: str
    reason: str | None
    level: str | None
    device: str | None
    precision: str | None
    batch_size: Count | None
    num_workers: Count | None
    steps_per_epoch: Count | None
    stages: Texts
    notes: Texts | None
    cannot_tell: Texts | None
    model: ModelInfo | None
    optimizers: list[OptimizerInfo] | None
    weights: WeightsInfo | None
    data: DataInfo | None
    settings: dict[str, dict[str, Any] | None] | None
    recipe: dict[str, Any] | None
    environment: EnvironmentInfo
    device_clock: DeviceClockInfo | None
    operators: OperatorsInfo | None
    costs: CostsInfo | None
    memory: MemoryInfo | None
    oom: OutOfMemoryInfo | None
    growth: GrowthInfo | None
    memory_tried: list[TriedAdviceInfo] | None
    rank: OwnRankInfo | None
    ranks: RankMembersInfo | None
    rank_facts: RankInfo | None
    one_rank: OneRankInfo | None
    agreement: AgreementInfo | None
    sources: list[SourceInfo] | None
    script: ScriptInfo | None
    part_places: dict[str, PartPlaceInfo] | None
    repeat: Count | None
    score: Number | None
    skipped: list[SkippedImageInfo] | None
    resumed_from: ResumedInfo | None
    held_out: HeldOutInfo | None
