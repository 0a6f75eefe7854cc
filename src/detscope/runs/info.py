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


class Model(TypedDict, total=False):
    """The network."""

    name: str | None
    family: str | None
    source: str | None
    parameters: Count | None


class Weights(TypedDict, total=False):
    """Where its weights come from."""

    kind: str | None
    source: str | None
    note: str | None
    replaced: Texts | None


class Data(TypedDict, total=False):
    """What it was fed."""

    name: str | None
    images: Count | None
    classes: Count | None
    split: str | None


class Processor(TypedDict, total=False):
    """The machine's processor."""

    model: str | None
    usable_cores: Number | None
    logical_cores: Number | None


class Gpu(TypedDict, total=False):
    """One of the machine's GPUs."""

    name: str | None


class Gpus(TypedDict, total=False):
    """All of them, or why none is known."""

    devices: list[Gpu] | None
    reason: str | None


class Environment(TypedDict, total=False):
    """Facts about the machine."""

    packages: dict[str, str | None] | None
    cpu: Processor | None
    gpus: Gpus
    threads: dict[str, Count | None] | None


class Operators(TypedDict, total=False):
    """The window of operators."""

    steps: Annotated[int, Meta(ge=1, le=LARGEST)] | None
    backward_attributed: Number | None
    kernels_unlinked: Count | None


class Peak(TypedDict):
    """The machine's roof."""

    peak_flops_per_s: Annotated[float, Meta(gt=0)]
    bandwidth_bytes_per_s: Annotated[float, Meta(gt=0)]
    device: NotRequired[str | None]
    threads: NotRequired[Count | None]
    definition: NotRequired[str | None]


class Costs(TypedDict, total=False):
    """Counted arithmetic."""

    images: Count | None
    peak: Peak | None
    why: str | None


class Place(TypedDict, total=False):
    """Where in the model something was."""

    operator: str | None
    module: str | None
    stage: str | None


class MemoryPart(TypedDict, total=False):
    """Memory of a stage, a module or a block."""

    name: str | None
    path: str | None
    depth: Count | None
    bytes: Number | None
    peak_bytes: Number | None
    allocated_bytes: Number | None
    freed_bytes: Number | None


class Memory(TypedDict, total=False):
    """What the recorder says of its account of memory."""

    what: str | None
    why: str | None
    definition: str | None
    passes: Count | None
    peak_bytes: Number | None
    allocated_bytes: Number | None
    freed_bytes: Number | None
    peak_at: Place | None
    stages: list[MemoryPart] | None
    modules: list[MemoryPart] | None
    largest: list[MemoryPart] | None
    steps: list[Whole] | None
    live_bytes: dict[str, Whole] | None
    unknown_frees: Count | None
    unknown_free_bytes: Count | None
    unseen_frees: Count | None
    own_bytes: Count | None
    unfinished_lost: bool | None


class OutOfMemory(TypedDict, total=False):
    """The request that failed."""

    step: Count | None
    request_bytes: Request | None
    device: str | None
    phase: str | None
    module: str | None
    operator: str | None
    message: str | None
    time_ns: Whole | None


class TriedAdvice(TypedDict, total=False):
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


class ClockReading(TypedDict):
    """One comparison of two ranks' clocks."""

    time_ns: int
    offset_ns: int
    error_ns: int


class RankFacts(TypedDict, total=False):
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
    clocks: list[ClockReading] | None


class RankMembers(TypedDict, total=False):
    """All ranks of a run."""

    count: Count | None
    members: list[RankFacts] | None
    missing: list[Count] | None


class OwnRank(TypedDict, total=False):
    """The rank whose run this is."""

    rank: Count
    ranks: Count


class OneRank(TypedDict, total=False):
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


class Source(TypedDict, total=False):
    """A file that was recorded elsewhere."""

    file: str | None
    format: str | None
    rank: Count | None
    rows: dict[str, Count] | None
    counts: dict[str, Count] | None


class ScriptPart(TypedDict, total=False):
    """The training or the evaluation of a script."""

    steps: Count | None
    batches: Count | None
    step_p50_ms: Number | None
    total_s: Number | None


ScriptRoot = TypedDict(
    "ScriptRoot",
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


class ScriptFunction(TypedDict, total=False):
    """A function that was seen running outside of all phases."""

    function: str | None
    file: str | None
    line: Count | None
    looks: Count | None
    share_of_other: Number | None


class ScriptLook(ScriptFunction, total=False):
    """One of the script's own, with those of packages that ran in it."""

    ms: Number | None
    steps: Count | None
    inside: list[ScriptFunction] | None


class Script(TypedDict, total=False):
    """A script that was recorded as it is."""

    name: str | None
    exit_code: Any
    command: Texts | None
    folder: str | None
    roots: list[ScriptRoot] | None
    parts: dict[str, ScriptPart] | None
    optimizers: Texts | None
    other: list[ScriptLook] | None


class Growth(TypedDict, total=False):
    """Memory that grew from step to step."""

    bytes_per_step: Number | None
    held_by: dict[str, Any] | None
    note: str | None


class Versioned(TypedDict):
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
    model: Model | None
    weights: Weights | None
    data: Data | None
    settings: dict[str, dict[str, Any] | None] | None
    recipe: dict[str, Any] | None
    environment: Environment
    operators: Operators | None
    costs: Costs | None
    memory: Memory | None
    oom: OutOfMemory | None
    growth: Growth | None
    memory_tried: list[TriedAdvice] | None
    rank: OwnRank | None
    ranks: RankMembers | None
    rank_facts: RankFacts | None
    one_rank: OneRank | None
    agreement: AgreementInfo | None
    sources: list[Source] | None
    script: Script | None
    repeat: Count | None
    score: Number | None
    skipped: list[Any] | None
    resumed_from: dict[str, Any] | None
    held_out: dict[str, Any] | None
