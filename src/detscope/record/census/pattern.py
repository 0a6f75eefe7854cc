"""A part of the census: listens to operators for something that counting them cannot tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from detscope.record.census.sites import Site


class HeardOperator(NamedTuple):
    """An operator that the dispatcher ran."""

    name: str  # aten::mul_
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    site: Site  # where it was called
    on_device: bool  # whether any of its tensors lives, or would live, on the device
    is_view: bool
    with_grad: bool  # whether autograd records
    phase: str | None


class PatternFind(NamedTuple):
    """What a pattern says of an operator: a row of the census."""

    kind: str
    what: str
    detail: str = ""  # `key=value` words
    bytes: int = 0  # that it is about
    site: Site | None = None  # where, if not where the operator was called


Listener = Callable[[HeardOperator], PatternFind | None]


@dataclass(frozen=True)
class CensusPattern:
    """`listen` begins a step: it gives the function that is told every operator of it, in their order."""

    name: str
    listen: Callable[[], Listener]
    order: int = 0
    facts: Callable[[], dict[str, Any]] | None = None  # to be known once, in a census step: for run.json
