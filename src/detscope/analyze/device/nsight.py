"""What NVIDIA's tools are asked for under `--nsight`, one row per batch size."""

from __future__ import annotations

from detscope.analyze.device.cores import THROUGHPUTS, CounterFigures
from detscope.analyze.device.figures import DeviceUse
from detscope.analyze.figure import Figure


class NsightUse(Figure, frozen=True, kw_only=True):
    """How busy the device was in the window."""

    kernels: float | None  # kernels_ns over window_ns
    with_copies: float | None
    kernels_ns: int
    window_ns: int
    with_copies_ns: int
    window: str  # what it is made of


class NsightTrialFigures(Figure, frozen=True, kw_only=True):
    """One batch size: the run that came out and its figures, or why there is none."""

    batch_size: int
    run: str | None = None
    status: str
    why: str | None = None
    steps: int | None = None
    utilisation: NsightUse | None = None  # of Nsight Systems
    kernels: int | None = None  # of Nsight Compute, as is what follows
    cycles: float | None = None
    pipes: tuple[CounterFigures, ...] = ()
    counters: tuple[CounterFigures, ...] = ()
    definition: str | None = None

    def sm_throughput(self) -> float | None:
        """The share of the SMs' throughput that kernels reached."""
        return next((one.value for one in self.counters if one.name == THROUGHPUTS[0]), None)


class NsightFigures(Figure, frozen=True, kw_only=True):
    """What was recorded, over batch sizes."""

    nsight: str  # the tool: systems or compute
    window: str  # of steps
    batch_sizes: tuple[NsightTrialFigures, ...]


def select_nsight_figures(
    batch_size: int, run: str, status: str, device: DeviceUse | None
) -> NsightTrialFigures:
    """Of a run's figures what the tools are asked for."""
    found = device or DeviceUse()
    use, cores = found.utilisation, found.cores
    names = NsightUse.__struct_fields__
    return NsightTrialFigures(
        batch_size=batch_size,
        run=run,
        status=status,
        steps=found.steps,
        utilisation=None if use is None else NsightUse(**{name: getattr(use, name) for name in names}),
        kernels=cores.kernels if cores else None,
        cycles=cores.cycles if cores else None,
        pipes=cores.pipes if cores else (),
        counters=cores.counters if cores else (),
        definition=cores.definition if cores and cores.kernels else None,
    )
