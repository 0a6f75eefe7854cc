"""Parts of a step beside its model: averages of weights, clipping, metrics, logging, checkpoints; the loss.

Methods of classes are heard as stages are (`ModelProbes`). Functions, which a loop calls where nothing of the
model runs, are replaced in their own file until the recording ends; they are such as only that file calls,
for what a script holds it may pickle, by name. Of each part the line of the first call is kept: the script's
own, and that of a package in between.

A loss that is no module has no border of its own. But whatever makes autograd nodes between the end of the
model's call and the begin of backward extends the graph of the model's output: that stretch is the loss, part
of the forward phase, and backward begins with its nodes.

Backward itself begins with the engine's own work: it walks the graph before it runs the first node, a
millisecond for some thousand nodes. That is no module's time and has a name of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling

from detscope.record.foreign import Patches
from detscope.record.model.averages import find_averages, list_classes
from detscope.record.model.borders import BorderWriter, CallState, Pair, mark_own, sequence_number
from detscope.record.model.calls import put_around, step_recorded_here
from detscope.record.steps.events import ENTER, EXIT, MARK, NO_SEQUENCE, TIME, WIDTH, encode_event
from detscope.record.steps.nodes import PHASES, NodeTable
from detscope.zoo.common_parts import COMMON_PARTS
from detscope.zoo.contract import Stage
from detscope.zoo.family import has_target

LOSS, ENGINE = "loss", "autograd"
# what belongs to the optimizer: name and path of its part, by the function
_OPTIMIZER = {
    "zero_grad": ("zero_grad", "zero_grad()"),
    "clip_grad_norm_": ("clip_gradients", "clip_grad_norm_()"),
    "clip_grad_value_": ("clip_gradients", "clip_grad_value_()"),
    "unscale_": ("unscale", "GradScaler.unscale_()"),
    "step": ("scaler", "GradScaler.step()"),
    "update": ("scaler", "GradScaler.update()"),
}
_FORWARD = PHASES.index("forward")
_FORWARD_ENDS = encode_event(_FORWARD, EXIT)
_BACKWARD_BEGINS, _BACKWARD_ENDS = (
    encode_event(PHASES.index("backward"), action) for action in (ENTER, EXIT)
)


def optimizer_part(function: Callable[..., Any]) -> tuple[str, str]:
    """Name and path of the part that one of these functions is; of an optimizer's own `zero_grad` too."""
    name = function.__name__
    return _OPTIMIZER.get(name, (name.strip("_"), f"{name}()"))


class _OpenPart(AbstractContextManager[None]):
    """A part under way, or one that is not heard."""

    def __init__(self, pair: Pair | None) -> None:
        self._pair = pair
        if pair is not None:
            pair[0](None, ())

    def __exit__(self, *_: object) -> None:
        if self._pair is not None:
            self._pair[1](None, (), None)


class _HeldMethod:
    """On a class whose objects hold a method of theirs, wrapped, as attributes: goes before those.

    Asked for by `super()`, in a class that is derived from it, it is the plain method: the held one calls it.
    """

    def __init__(self, plain: Any, name: str, around: Callable[[Any], Any]) -> None:
        self._plain, self._name, self._around = plain, name, around

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        kinds = () if owner is None else type(owner).__mro__
        first = next((vars(one)[self._name] for one in kinds if self._name in vars(one)), None)
        held = vars(owner).get(self._name) if first is self else None
        return self._plain.__get__(owner, kind) if held is None else self._around(held)

    def __set__(self, owner: Any, value: Any) -> None:
        vars(owner)[self._name] = value

    def __delete__(self, owner: Any) -> None:
        del vars(owner)[self._name]


class NamedParts:
    """All parts of one recording."""

    def __init__(self, nodes: NodeTable, borders: BorderWriter) -> None:
        self._nodes = nodes
        self._borders = borders
        self._pairs: dict[tuple[str, str], Pair] = {}
        self._patches = Patches()
        self._forward_end: tuple[int, int] | None = None  # of the model: its time, the next autograd node
        self._loss = nodes.add_node("region", LOSS, LOSS, LOSS).number
        self._loss_mark = borders.find_mark(self._loss)
        self._engine = nodes.add_node("region", ENGINE, ENGINE, ENGINE).number
        self.calls = CallState()  # which thread is recorded
        self.active = False  # a step is recorded
        self.with_modules = False  # and who runs backward is told
        self._open = 0

    @property
    def is_open(self) -> bool:
        """Whether a part runs, or a stage outside of the model's call."""
        return self._open > 0 or self._borders.is_open

    def find_pair(self, name: str, path: str) -> Pair:
        """What is called before and after a part."""
        known = self._pairs.get((name, path))
        if known is not None:
            return known
        number = self._nodes.add_node("part", path, "part", name).number
        enter, leave = encode_event(number, ENTER), encode_event(number, EXIT)
        buffer = self._borders.buffer

        def write(code: int) -> None:
            buffer.items.extend((code, buffer.now(), NO_SEQUENCE))
            if buffer.marker is not None:
                buffer.handles.append(buffer.marker.record() if enter in buffer.marker.wanted else None)

        def begin(_target: Any, _args: Any) -> None:
            self._open += 1
            self._borders.note_place(path)
            write(enter)

        def end(_target: Any, _args: Any, _output: Any) -> None:
            write(leave)
            self._open -= 1

        pair = self._pairs[name, path] = (begin, end)
        return pair

    def hear_part(self, name: str, path: str) -> AbstractContextManager[None]:
        """A part begins now and ends with the block, if this step and this thread are recorded."""
        heard = self.active and step_recorded_here(self.calls)
        return _OpenPart(self.find_pair(name, path) if heard else None)

    def find_methods(self, model: nn.Module) -> list[tuple[Stage, Pair]]:
        """Methods of classes that are parts, of libraries that are loaded and of averages of this model."""
        known = [*COMMON_PARTS, *find_averages(model)]
        paths = [(part, part.target.partition(":")[2]) for part in known if has_target(model, part.target)]
        return [(part, self.find_pair(part.name, f"{path}()")) for part, path in paths if "." in path]

    def listen_to_functions(self) -> None:
        """Hear functions of libraries that are loaded, anywhere in a step, until `remove`."""
        for part in COMMON_PARTS:
            library, _, name = part.target.partition(":")
            if "." not in name and library in sys.modules and hasattr(sys.modules[library], name):
                around = partial(self._call_part, part.name, f"{name}()")
                put_around(self._patches, sys.modules[library], name, around)
        self._listen_to_metrics()

    def _listen_to_metrics(self) -> None:
        """Metrics of torchmetrics hold their `update`, wrapped: that of their class is never asked for."""
        metric = getattr(sys.modules.get("torchmetrics.metric"), "Metric", None)
        if metric is None:
            return
        for kind in (one for one in list_classes(metric) if "update" in vars(one)):
            path = f"{kind.__name__}.update()"

            def around(held: Any, path: str = path) -> Any:
                heard = self.active and not is_dynamo_compiling() and step_recorded_here(self.calls)
                return partial(self._call_part, "metrics", path, held) if heard else held

            self._patches.put(kind, "update", _HeldMethod(vars(kind)["update"], "update", around))

    def _call_part(self, part: str, path: str, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.hear_part(part, path):
            return plain(*args, **kwargs)

    def remove(self) -> None:
        """Put everything back for good."""
        self._patches.undo()

    # ---- the loss

    def end_forward(self, time_ns: int) -> None:
        """A model's call has ended: what makes autograd nodes until backward begins is its loss."""
        self._forward_end = (time_ns, sequence_number())

    def begin_backward(self, tensors: Any) -> int | None:
        """Backward is about to begin; when the loss began, where there is one."""
        ended, self._forward_end = self._forward_end, None
        sequence = sequence_number()
        if ended is None or not self.active or sequence <= ended[1]:
            return None
        items = self._borders.buffer.items
        for place in range(len(items) - WIDTH, -1, -WIDTH):
            if items[place + TIME] < ended[0]:
                break  # of a step that was over before
            if items[place] == _FORWARD_ENDS and items[place + TIME] == ended[0]:
                self._borders.buffer.prolong_node(place, _FORWARD, self._loss, (ended[1], sequence))
                mark_own(tensors, ended[1], self._loss_mark)
                return ended[0]
        return None

    def hear_first_node(self, tensors: Any) -> Any:
        """Backward has begun: until its first node is reached the engine prepares; a handle, or None.

        A device's clock does not tell it: there the host walks the graph while the queue is worked off.
        """
        buffer = self._borders.buffer
        nodes = (getattr(one, "grad_fn", None) for one in tensors)
        first = next((node for node in nodes if node is not None), None)
        if first is None or not self.with_modules or buffer.marker is not None:
            return None
        items = buffer.items
        items.extend((encode_event(self._engine, MARK), buffer.now(), NO_SEQUENCE))
        begun = len(items)

        def end_preparing(_gradients: Any) -> None:
            if len(items) == begun:  # nobody said whose this node is: it is nobody's
                now_ns = buffer.now()
                items.extend((_BACKWARD_ENDS, now_ns, NO_SEQUENCE, _BACKWARD_BEGINS, now_ns, NO_SEQUENCE))

        return first.register_prehook(end_preparing)

    def describe_places(self) -> dict[str, Any]:
        """For `run.json`: from where each part was called."""
        return {
            path: {
                "own": look.own._asdict(),
                "inside": None if look.inside is None else look.inside._asdict(),
            }
            for path, look in self._borders.places.items()
        }
