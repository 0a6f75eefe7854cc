"""Where the time of a network is expected: by its stages, as the physical model has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from detscope.predict.models.choice import TargetModel
from detscope.predict.layers.graph import LayerGraph
from detscope.predict.models.hybrid import HybridModel
from detscope.predict.layers.model import LayerModel
from detscope.predict.models.physical import PhysicalModel
from detscope.predict.samples import Case

_ITSELF = "(the model itself)"


def stage_shares(model: TargetModel, case: Case) -> dict[str, float] | None:
    """Shares of the device's time by stage; None where only trees were fitted, which know no layers."""
    physical = _physical(model)
    if physical is None:
        return None
    if isinstance(physical, LayerModel):
        return _shares({stage or _ITSELF: ms for stage, ms in physical.by_stage(case).items()})
    by_stage = {stage: physical.parts([Case(part, case.batch)])[0][0] for stage, part in _parts(case.graph)}
    return _shares(by_stage)


def counted_by_traffic(model: TargetModel, graph: LayerGraph) -> str | None:
    """A word on operations whose latency is a guess by what they read and write; None: there are none."""
    physical = _physical(model)
    if isinstance(physical, LayerModel):
        why, kinds = "operations no microbench has seen", physical.unseen_kinds(graph)
    else:
        why, kinds = "operations without a rule", graph.unknown_kinds
    return f"latency: {why}, counted by memory traffic: {', '.join(kinds)}" if kinds else None


def knows_update(model: TargetModel, optimizer: str) -> bool:
    """Whether an optimizer's update was measured for whatever may answer; trees know whole steps alone."""
    parts = [one.physical if isinstance(one, HybridModel) else one for one in (model.near, model.far)]
    return all(isinstance(one, LayerModel) and one.table.knows(optimizer) for one in parts)


def _shares(by_stage: Mapping[str, float]) -> dict[str, float] | None:
    whole = float(sum(by_stage.values()))
    return {stage: float(part) / whole for stage, part in by_stage.items()} if whole > 0 else None


def _physical(model: TargetModel) -> PhysicalModel | LayerModel | None:
    for fitted in (model.near, model.far):
        if isinstance(fitted, HybridModel):
            return fitted.physical
        if isinstance(fitted, PhysicalModel | LayerModel):
            return fitted
    return None


def _parts(graph: LayerGraph) -> list[tuple[str, LayerGraph]]:
    stages = dict.fromkeys(operation.stage for operation in graph.operations)
    return [
        (
            stage or _ITSELF,
            replace(graph, operations=tuple(one for one in graph.operations if one.stage == stage)),
        )
        for stage in stages
    ]
