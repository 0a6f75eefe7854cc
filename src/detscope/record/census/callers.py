"""Who called: lines that patterns name in the place of the innermost one outside of torch."""

from __future__ import annotations

from types import FrameType

from torch import nn

from detscope.record.census.sites import Site
from detscope.record.code_lines import find_frames, locate_frame


def find_model_call(frame: FrameType) -> Site | None:
    """The line that calls the outermost module that is under way, its `forward` by name or not."""
    above: FrameType | None = frame
    outermost: FrameType | None = None
    while above is not None:
        if _is_torchs_call(above) or _is_forward(above):
            outermost = above
        above = above.f_back
    return None if outermost is None or outermost.f_back is None else _make_site(outermost.f_back)


def _is_torchs_call(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.endswith("torch/nn/modules/module.py")


def _is_forward(frame: FrameType) -> bool:
    """Whether somebody calls `forward` by name; a frame that is asked for its locals keeps them."""
    if frame.f_code.co_name != "forward" or _is_torchs_call(frame.f_back):
        return False
    return isinstance(frame.f_locals.get("self"), nn.Module)


def find_site_above(frame: FrameType, folder: str) -> Site | None:
    """The innermost line outside of torch and of this folder."""
    above: FrameType | None = frame
    below: FrameType | None = None
    while above is not None:  # the outermost frame of the folder that called
        if folder in above.f_code.co_filename:
            below = above
        elif below is not None and "/torch/" not in above.f_code.co_filename:
            break
        above = above.f_back
    return None if below is None or below.f_back is None else _make_site(below.f_back)


def _make_site(frame: FrameType) -> Site | None:
    found = find_frames(frame)
    if found is None:
        return None
    own, inside = found
    innermost = inside or own
    outer = None if inside is None else locate_frame(own)
    return Site(locate_frame(innermost), outer, innermost.f_code.co_filename)


def is_called_by(frame: FrameType | None, file: str, function: str) -> bool:
    """Whether a function of a file that ends like this is under way."""
    while frame is not None:
        if frame.f_code.co_name == function and frame.f_code.co_filename.endswith(file):
            return True
        frame = frame.f_back
    return False
