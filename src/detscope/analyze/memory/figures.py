"""The figures of memory; all sizes are bytes of live tensors unless their name says otherwise."""

from __future__ import annotations

from detscope.analyze.figure import Figure
from detscope.analyze.stats import Interval


class CategoryBytes(Figure, frozen=True, kw_only=True):
    """Parameters, gradients, optimizer, inputs, activations, temporary, workspace or unknown."""

    name: str  # of the category
    bytes: int  # its size


class PeakMoment(Figure, frozen=True, kw_only=True):
    """When and where the peak was reached."""

    step: int | None = None  # its number, from 0
    mode: str | None = None  # of the step: recorded, memory, warmup, unfinished ...
    time_ns: int | None = None  # of the run's clock
    ms_into_step: float | None = None  # since the step began
    phase: str | None = None  # of the step
    stage: str | None = None  # of the detector
    operator: str | None = None  # as torch calls it
    direction: str | None = None  # forward, backward or recompute
    module: str | None = None  # path of the module
    index: int | None = None  # of a file of changes: which of its moments


class ModuleMemory(Figure, frozen=True, kw_only=True):
    """What a module holds at the peak."""

    path: str  # of the module, dotted
    bytes: int  # alive at the peak
    share: float  # of the peak
    tensors: int  # alive at the peak
    categories: tuple[CategoryBytes, ...]


class TensorMemory(Figure, frozen=True, kw_only=True):
    """A tensor that is alive at the peak."""

    bytes: int  # its size
    shape: str | None  # 2x3x320x256
    dtype: str | None  # float32, ...
    operator: str | None  # that made it
    category: str | None  # parameters, activations, ...
    name: str | None  # of a parameter or input
    stack: str | None  # where it was made
    module: str | None  # that it belongs to
    phase: str | None  # in which it was made
    stage: str | None  # in which it was made


class NamedPeak(Figure, frozen=True, kw_only=True):
    """The highest level reached in a phase or a stage."""

    name: str  # of the phase or stage
    peak_bytes: int  # highest level


class StepPeak(Figure, frozen=True, kw_only=True):
    """The peak of one step."""

    step: int  # its number, from 0
    peak_bytes: int  # highest level


class StepPeaks(Figure, frozen=True, kw_only=True):
    """The peaks of the measured steps."""

    n: int  # steps
    p50_bytes: float | None = None  # the median
    ci95_bytes: Interval | None = None  # 95 % interval of the median
    spread: float | None = None  # relative, around the median
    lowest_bytes: int | None = None  # of all steps
    highest_bytes: int | None = None  # of all steps
    peaks: tuple[StepPeak, ...] = ()
    why: str | None = None  # why there is no median


class OtherDevice(Figure, frozen=True, kw_only=True):
    """A device beside the one that the account is of."""

    device: str  # as torch calls it: cpu, cuda:0
    peak_bytes: int  # highest level


class Fragmentation(Figure, frozen=True, kw_only=True):
    """Memory that the allocator keeps and nobody uses, at the moment it was most, and how cut up it was."""

    bytes: int  # free and cached: reserved and not allocated
    share: float | None = None  # that no large request can use: 1 - the largest free block over bytes
    reserved_bytes: int  # at that moment
    allocated_bytes: int  # at that moment
    fragmented_bytes: int | None = None  # of these, free between blocks in use: nobody else can have them
    largest_free_bytes: tuple[int, ...]  # the largest free blocks


class WorkerMemory(Figure, frozen=True, kw_only=True):
    """Resident memory of a loader's worker."""

    pid: str  # of the process
    bytes: int  # the highest


class MemoryLevels(Figure, frozen=True, kw_only=True):
    """Three names of memory that are never mixed; each is the highest."""

    allocated_bytes: int  # live tensors
    reserved_bytes: int | None = None  # the caching allocator's
    reserved_why: str | None = None  # why it is not known
    fragmentation: Fragmentation | None = None
    fragmentation_why: str | None = None  # why it is not known
    context_bytes: int | None = None  # used on the device and not reserved when recording began
    beside_bytes: int | None = None  # the same at most: context, libraries, other processes
    context_why: str | None = None  # why it is not known
    process_bytes: int | None = None  # resident, or the device's account of the process
    process_why: str | None = None  # why it is not known
    process_growth_bytes: int | None = None  # above what it held when recording began
    workers: tuple[WorkerMemory, ...] = ()


class MemorySlope(Figure, frozen=True, kw_only=True):
    """Inputs, activations, temporary and workspace at the peak over the batch; the rest is fixed."""

    batch_size: int  # images of the step
    bytes_per_image: float  # at the peak
    fixed_bytes: int  # whatever the batch


class OutOfMemory(Figure, frozen=True, kw_only=True):
    """The request that failed, and the largest batch that would fit by this run's own figures."""

    status: str  # oom_host or oom_device
    request_bytes: int | None  # that failed
    device: str | None  # as torch calls it: cpu, cuda:0
    phase: str | None  # of the step in which it failed
    module: str | None  # in which it failed
    message: str | None  # of the allocator
    limit_bytes: int  # the most that was allocated at once before the request failed: it did fit
    kept_back_bytes: int  # taken off the limit: not there for tensors from the second step on
    fixed_bytes: int  # of any step
    bytes_per_image: float | None  # at the peak
    basis: str  # what an image's share is taken from
    suggested_batch: int | None  # the largest that fits
    why: str | None  # why no batch is suggested
    command: str | None  # that runs it


def category_name(category: str) -> str:
    """A category of memory as people read it, in every view."""
    return "optimizer state" if category == "optimizer" else category


class TriedAdvice(Figure, frozen=True, kw_only=True):
    """A piece of memory advice that was followed."""

    variant: str | None = None  # bf16, checkpoint, batch, ...
    predicted_saving_bytes: float | None = None  # by replay
    measured_saving_bytes: float | None = None  # by running it
    error_share: float | None = None  # predicted over measured less one
    predicted_peak_bytes: float | None = None  # by replay
    peak_bytes: float | None = None  # measured
    step_ratio: float | None = None  # of the step's time, after over before
    run: str | None = None  # that tried it
    why: str | None = None  # why it could not be tried


class RecordedMemory(Figure, frozen=True, kw_only=True):
    """What the recorder itself says of its account."""

    definition: str | None = None  # what is measured, in words
    steps: tuple[int, ...] = ()  # that were recorded
    live_bytes: tuple[CategoryBytes, ...] = ()
    unknown_frees: int | None = None  # of blocks that nobody saw made
    unknown_free_bytes: int | None = None  # of these
    unseen_frees: int | None = None  # seen only when their place was used again


class MemoryAccount(Figure, frozen=True, kw_only=True):
    """What the peak of allocated memory is made of."""

    what: str  # what was recorded
    device: str | None  # whose memory it is
    peak_bytes: int  # highest sum of live tensors
    lower_bound_why: str | None = None  # why the true peak may be higher
    at: PeakMoment
    categories: tuple[CategoryBytes, ...]
    unknown_share: float | None  # of the peak: nobody knows whose it is
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
    moments: int | None = None  # of a file of changes
    oom: OutOfMemory | None = None
    tried: tuple[TriedAdvice, ...] = ()


class PassPart(Figure, frozen=True, kw_only=True):
    """Memory of a stage, a module or a block in one pass."""

    name: str | None = None  # of a stage
    path: str | None = None  # of the module, dotted
    depth: int | None = None  # of a stage among its parents
    operator: str | None = None  # as torch calls it
    module: str | None = None  # path of the module
    stage: str | None = None  # of the detector
    bytes: float | None = None  # of a block
    peak_bytes: float | None = None  # highest level in it
    allocated_bytes: float | None = None  # in it
    freed_bytes: float | None = None  # in it


class PassPlace(Figure, frozen=True, kw_only=True):
    """Where in the model something was."""

    operator: str | None = None  # as torch calls it
    module: str | None = None  # path of the module
    stage: str | None = None  # of the detector


class PassMemory(Figure, frozen=True, kw_only=True):
    """What a forward pass allocates above what was there: an inference measures it on a few passes."""

    what: str | None = None  # what was measured
    definition: str | None = None  # in words
    passes: int | None = None  # that were measured
    peak_bytes: float | None = None  # highest level above the beginning
    allocated_bytes: float | None = None  # in all
    freed_bytes: float | None = None  # of these, until its end
    peak_at: PassPlace | None = None
    stages: tuple[PassPart, ...] = ()
    modules: tuple[PassPart, ...] = ()
    largest: tuple[PassPart, ...] = ()
    why: str | None = None  # why it is not known
