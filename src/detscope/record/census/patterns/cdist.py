"""torch.cdist(p=1) between vectors of few columns."""

from __future__ import annotations

from detscope.record.census.pattern import CensusPattern, HeardOperator, Listener, PatternFind

MOST_COLUMNS = 16


def listen() -> Listener:
    """Every call is told, with its sizes."""
    return hear


def hear(heard: HeardOperator) -> PatternFind | None:
    """The operator that cdist becomes, or itself in inference_mode, for p = 1."""
    if heard.name not in ("aten::_cdist_forward", "aten::cdist") or not heard.on_device:
        return None
    one, other, p = (*heard.args, heard.kwargs.get("p", 2.0))[:3]
    columns = one.shape[-1]
    if p != 1 or columns > MOST_COLUMNS:
        return None
    sizes = f"{'x'.join(map(str, one.shape))}:{'x'.join(map(str, other.shape))}"
    return PatternFind("cdist", heard.name, f"columns={columns} pairs={heard.output.numel()} sizes={sizes}")


PART = CensusPattern("cdist", listen)
