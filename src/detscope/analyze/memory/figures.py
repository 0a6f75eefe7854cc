"""The figures of memory; all sizes are bytes of live tensors unless their name says otherwise."""

from __future__ import annotations

from detscope.analyze.figure import Figure
from detscope.analyze.stats import Interval


class CategoryBytes(Figure, frozen=True, kw_only=True):
    """Parameters, gradients, optimizer, inputs, activations, temporary, workspace or unknown."""

    name: str
    bytes: int


class PeakMoment(Figure, frozen=True, kw_only=True):
    """When and where the peak was reached."""

    step: int | None = None
    mode: str | None = None  # of the step: recorded, memory, warmup, unfinished ...
    time_ns: int | None = None
    ms_into_step: float | None = None
    phase: str | None = None
    stage: str | None = None
    operator: str | None = None
    direction: str | None = None
    module: str | None = None
    index: int | None = None  # of a file of changes: which of its moments


class ModuleMemory(Figure, frozen=True, kw_only=True):
    """What a module holds at the peak."""

    path: str
    bytes: int
    share: float  # of the peak
    tensors: int
    categories: tuple[CategoryBytes, ...]


class TensorMemory(Figure, frozen=True, kw_only=True):
    """A tensor that is alive at the peak."""

    bytes: int
    shape: str | None
    dtype: str | None
    operator: str | None  # that made it
    category: str | None
    name: str | None
    stack: str | None
    module: str | None  # that it belongs to
    phase: str | None
    stage: str | None


class NamedPeak(Figure, frozen=True, kw_only=True):
    """The highest level reached in a phase or a stage."""

    name: str
    peak_bytes: int


class StepPeak(Figure, frozen=True, kw_only=True):
    """The peak of one step."""

    step: int
    peak_bytes: int


class StepPeaks(Figure, frozen=True, kw_only=True):
    """The peaks of the measured steps."""

    n: int
    p50_bytes: float | None = None  # the median
    ci95_bytes: Interval | None = None
    spread: float | None = None
    lowest_bytes: int | None = None
    highest_bytes: int | None = None
    peaks: tuple[StepPeak, ...] = ()
    why: str | None = None


class OtherDevice(Figure, frozen=True, kw_only=True):
    """A device beside the one that the account is of."""

    device: str
    peak_bytes: int


class Fragmentation(Figure, frozen=True, kw_only=True):
    """Reserved and not allocated, at the moment it was most."""

    bytes: int
    reserved_bytes: int
    allocated_bytes: int
    largest_free_bytes: tuple[int, ...]


class WorkerMemory(Figure, frozen=True, kw_only=True):
    """Resident memory of a loader's worker."""

    pid: str
    bytes: int


class MemoryLevels(Figure, frozen=True, kw_only=True):
    """Three names of memory that are never mixed; each is the highest."""

    allocated_bytes: int  # live tensors
    reserved_bytes: int | None = None  # the caching allocator's
    reserved_why: str | None = None
    fragmentation: Fragmentation | None = None
    fragmentation_why: str | None = None
    process_bytes: int | None = None  # resident, or the device's account of the process
    process_why: str | None = None
    process_growth_bytes: int | None = None  # above what it held when recording began
    workers: tuple[WorkerMemory, ...] = ()


class MemorySlope(Figure, frozen=True, kw_only=True):
    """Inputs, activations, temporary and workspace at the peak over the batch; the rest is fixed."""

    batch_size: int
    bytes_per_image: float
    fixed_bytes: int


class OutOfMemory(Figure, frozen=True, kw_only=True):
    """The request that failed, and the largest batch that would fit by this run's own figures."""

    status: str
    request_bytes: int | None
    device: str | None
    phase: str | None
    module: str | None
    message: str | None
    limit_bytes: int  # the most that was allocated at once before the request failed: it did fit
    kept_back_bytes: int  # taken off the limit: not there for tensors from the second step on
    fixed_bytes: int  # of any step
    bytes_per_image: float | None
    basis: str  # what an image's share is taken from
    suggested_batch: int | None
    why: str | None  # why no batch is suggested
    command: str | None


class TriedAdvice(Figure, frozen=True, kw_only=True):
    """A piece of memory advice that was followed."""

    variant: str | None = None
    predicted_saving_bytes: float | None = None
    measured_saving_bytes: float | None = None
    error_share: float | None = None
    predicted_peak_bytes: float | None = None
    peak_bytes: float | None = None
    step_ratio: float | None = None  # of the step's time, after over before
    run: str | None = None
    why: str | None = None


class RecordedMemory(Figure, frozen=True, kw_only=True):
    """What the recorder itself says of its account."""

    definition: str | None = None
    steps: tuple[int, ...] = ()
    live_bytes: tuple[CategoryBytes, ...] = ()
    unknown_frees: int | None = None
    unknown_free_bytes: int | None = None
    unseen_frees: int | None = None


class MemoryAccount(Figure, frozen=True, kw_only=True):
    """What the peak of allocated memory is made of."""

    what: str
    device: str | None
    peak_bytes: int
    lower_bound_why: str | None = None  # why the true peak may be higher
    at: PeakMoment
    categories: tuple[CategoryBytes, ...]
    unknown_share: float | None
    modules: tuple[ModuleMemory, ...] = ()  # those that hold most first
    largest: tuple[TensorMemory, ...] = ()
    modules_why: str | None = None  # why modules and tensors are not known
    phases: tuple[NamedPeak, ...] = ()
    stages: tuple[NamedPeak, ...] = ()
    steps: StepPeaks | None = None
    other_devices: tuple[OtherDevice, ...] = ()
    levels: MemoryLevels
    slope: MemorySlope | None = None
    recorded: RecordedMemory | None = None
    blocks: int | None = None  # how many the account is made of
    changes: int | None = None  # of a file of changes
    moments: int | None = None
    oom: OutOfMemory | None = None
    tried: tuple[TriedAdvice, ...] = ()


class PassPart(Figure, frozen=True, kw_only=True):
    """Memory of a stage, a module or a block in one pass."""

    name: str | None = None
    path: str | None = None
    depth: int | None = None
    operator: str | None = None
    module: str | None = None
    stage: str | None = None
    bytes: float | None = None
    peak_bytes: float | None = None
    allocated_bytes: float | None = None
    freed_bytes: float | None = None


class PassPlace(Figure, frozen=True, kw_only=True):
    """Where in the model something was."""

    operator: str | None = None
    module: str | None = None
    stage: str | None = None


class PassMemory(Figure, frozen=True, kw_only=True):
    """What a forward pass allocates above what was there: an inference measures it on a few passes."""

    what: str | None = None
    definition: str | None = None
    passes: int | None = None
    peak_bytes: float | None = None
    allocated_bytes: float | None = None
    freed_bytes: float | None = None
    peak_at: PassPlace | None = None
    stages: tuple[PassPart, ...] = ()
    modules: tuple[PassPart, ...] = ()
    largest: tuple[PassPart, ...] = ()
    why: str | None = None  # why it is not known
