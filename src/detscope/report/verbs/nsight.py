"""What NVIDIA's tools recorded under `--nsight`: a table over batch sizes, and where the runs are."""

from __future__ import annotations

from detscope.analyze.device.nsight import NsightFigures, NsightTrialFigures
from detscope.report.model import Column, Fact, Facts, Section, Table, Value

_PIPES = {"fma": "fma", "fp16": "fp16", "tensor": "tensor", "xu": "sfu (xu)"}


def nsight_sections(result: NsightFigures) -> list[Section]:
    """One line per batch size."""
    trials = result.batch_sizes
    table = _systems_table(trials) if result.nsight == "systems" else _compute_table(trials)
    facts = []
    if result.nsight == "systems":
        facts += [Fact("window", trial.utilisation.window) for trial in trials if trial.utilisation][:1]
    else:
        facts += [Fact("per pipe", trial.definition) for trial in trials if trial.definition][:1]
    for trial in trials:
        words = f"detscope show {trial.run}" if trial.run else f"failed: {trial.why}"
        facts.append(Fact(f"batch {trial.batch_size}", words, "" if trial.run else "warn"))
    return [Section("nsight", "Nsight", table.caption, "", [table, Facts(facts)])]


def _systems_table(trials: tuple[NsightTrialFigures, ...]) -> Table:
    columns = [Column("batch", "count"), Column("steps", "count"), Column("kernels", "share")]
    columns += [Column("busy ms", "ms"), Column("of ms", "ms"), Column("kernels + copies", "share")]
    body: list[list[Value]] = []
    for trial in trials:
        use = trial.utilisation
        figures = (
            (use.kernels, use.kernels_ns / 1e6, use.window_ns / 1e6, use.with_copies) if use else [None] * 4
        )
        body.append([trial.batch_size, trial.steps, *figures])
    caption = "GPU compute utilisation (Nsight Systems)"
    return Table("nsight-systems", caption, columns, body, brief_rows=len(body))


def _compute_table(trials: tuple[NsightTrialFigures, ...]) -> Table:
    columns = [Column("batch", "count"), Column("kernels", "count"), Column("cycles", "count")]
    columns += [Column(name, "share") for name in (*_PIPES.values(), "SM throughput", "coverage")]
    body: list[list[Value]] = []
    for trial in trials:
        pipes = {pipe.name: pipe for pipe in trial.pipes}
        found = [pipes.get(name) for name in _PIPES]
        covered = [pipe.coverage for pipe in found if pipe is not None and pipe.coverage is not None]
        body.append(
            [
                *(trial.batch_size, trial.kernels, trial.cycles),
                *(None if pipe is None else pipe.value for pipe in found),
                *(trial.sm_throughput(), min(covered, default=None)),
            ]
        )
    caption = "core utilisation, share of kernel time (Nsight Compute)"
    return Table("nsight-compute", caption, columns, body, brief_rows=len(body))
