"""Stages of models that other libraries build: targets with a `*` for every child of a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from detscope.zoo.contract import Stage
from detscope.zoo.family import has_target

if TYPE_CHECKING:
    from torch import nn


def find_parts(module: nn.Module, pairs: Iterable[tuple[str, str]]) -> tuple[Stage, ...]:
    """Stages of those pairs of name and target that exist on this model.

    A `*` in a target stands for every child of a list of modules (`decoder.layers.*.self_attn`); `{}` in the
    name is the child's name (`decoder.layer_{}`). Such a list is gone through and never called itself.
    """
    return tuple(
        Stage(name, path)
        for pattern, target in pairs
        for name, path in _expand_pair(module, pattern, target)
        if has_target(module, path)
    )


def _expand_pair(module: nn.Module, name: str, target: str) -> Iterator[tuple[str, str]]:
    before, star, after = target.partition(".*")
    if not star:
        yield name, target
        return
    found: Any = module
    for part in before.split("."):
        found = getattr(found, part, None)
    children = [] if found is None else [child for child, one in found.named_children() if one is not None]
    for child in children:
        yield from _expand_pair(module, name.replace("{}", child, 1), f"{before}.{child}{after}")


# What RT-DETR and those that came from it call their parts, wherever they keep them.
HYBRID_ENCODER = (
    ("input_projection", "input_proj.*"),
    ("encoder.layers", "encoder.*"),
    ("encoder.fusion_up", "lateral_convs.*"),
    ("encoder.fusion_up", "fpn_blocks.*"),
    ("encoder.fusion_down", "downsample_convs.*"),
    ("encoder.fusion_down", "pan_blocks.*"),
)
QUERY_DECODER = (
    ("input_projection", "input_proj.*"),
    ("query_selection", "_get_decoder_input()"),
    ("decoder", "decoder"),
    ("decoder.layer_{}", "decoder.layers.*"),
    ("decoder.layer_{}.self_attention", "decoder.layers.*.self_attn"),
    ("decoder.layer_{}.cross_attention", "decoder.layers.*.cross_attn"),
    ("decoder.layer_{}.feed_forward", "decoder.layers.*.forward_ffn()"),
    ("decoder.query_position", "query_pos_head"),
    ("heads", "dec_score_head.*"),
    ("heads", "dec_bbox_head.*"),
    ("heads", "pre_bbox_head"),
    ("heads", "decoder.lqe_layers.*"),
)


def place_parts(path: str, pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The same parts of a module that lies at this path."""
    return tuple((name, f"{path}.{target}") for name, target in pairs)
