"""Where the time of a network is expected: by its stages, as the physical model has it."""

from __future__ import annotations

from dataclasses import replace

from detscope.predict.choice import TargetModel
from detscope.predict.graph import LayerGraph
from detscope.predict.hybrid import HybridModel
from detscope.predict.physical import PhysicalModel
from detscope.predict.samples import Case


def stage_shares(model: TargetModel, case: Case) -> dict[str, float] | None:
    """Shares of the device's time by stage; None where only trees were fitted, which know no layers."""
    physical = _physical(model)
    if physical is None:
        return None
    by_stage = {stage: physical.parts([Case(part, case.batch)])[0][0] for stage, part in _parts(case.graph)}
    whole = float(sum(by_stage.values()))
    return {stage: float(part) / whole for stage, part in by_stage.items()} if whole > 0 else None


def _physical(model: TargetModel) -> PhysicalModel | None:
    for fitted in (model.near, model.far):
        if isinstance(fitted, HybridModel):
            return fitted.physical
        if isinstance(fitted, PhysicalModel):
            return fitted
    return None


def _parts(graph: LayerGraph) -> list[tuple[str, LayerGraph]]:
    stages = dict.fromkeys(operation.stage for operation in graph.operations)
    return [
        (
            stage or "(the model itself)",
            replace(graph, operations=tuple(one for one in graph.operations if one.stage == stage)),
        )
        for stage in stages
    ]
