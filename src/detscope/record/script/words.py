"""What is said of a script that cannot be told in figures."""

from __future__ import annotations

COMPILED = "torch.compile: modules inside compiled code cannot be told apart, so only phases are recorded"
SCRIPTED = (
    "TorchScript: modules inside cannot be told apart, so only phases are recorded, and no memory by blocks"
)
NEW_MODULES = (
    "modules of the model were added or replaced while it ran: the new ones' time is part of what they are in"
)
NO_MODULE = (
    "cannot tell forward from other: no module was called from Python (compiled code, or plain functions)"
)
NO_STEP = "no step was seen: the script ended before it had called a model and gone on"
OWN_PROFILER = (
    "the script has a profiler of its own, and only one can run at a time: operators and memory by blocks are"
    " not recorded from then on"
)
