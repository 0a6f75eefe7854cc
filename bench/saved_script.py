"""A script that saves, copies, exports and sends its model in the middle of steps, and writes down what came.

python saved_script.py NET OUT [--recorder]; under `detscope run` it is the same file. Nothing of detscope is
imported unless it is asked to record itself. What is tried leaves traces on a model and in torch (scripting
and exporting do, and so do steps), so without detscope everything is tried in the same steps (SAVED_STEPS).
"""

from __future__ import annotations

import copy
import gc
import hashlib
import io
import json
import logging
import multiprocessing
import os
import pickle
import pickletools
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if __name__ == "__mp_main__":  # a process that is sent the model does not have detscope

    class _NotInstalled:
        def find_spec(self, name: str, *_: object) -> None:
            if name.partition(".")[0] == "detscope":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, _NotInstalled())

import torch
from torch import nn

from saved_nets import NETS, example, training_loss

STEPS = 40
KINDS = ("memory", "recorded", "ops", "bare")  # of steps, in the order in which they come
TORCHVISION = ("fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet", "fcos", "ssd", "ssdlite")


class Tensors(nn.Module):
    """Detections as a flat tuple: dictionaries cannot leave a trace."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> tuple[torch.Tensor, ...]:
        return tuple(tensors_in(self.model(*inputs)))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one)


def described(model: nn.Module, name: str) -> str:
    """A model as somebody sees it who has it: classes, state, hooks, what it answers."""
    parts = [
        f"{path} {type(part).__module__}.{type(part).__qualname__}" for path, part in model.named_modules()
    ]
    parts += [f"{key} {value.sum().item()!r}" for key, value in model.state_dict().items()]
    for part in model.modules():
        parts.append(f"{sorted(vars(part))} {len(part._forward_hooks)} {len(part._forward_pre_hooks)}")
    was_training = model.training
    exported, inputs = example(name, model.eval())
    with torch.no_grad():
        parts += [repr(tensor.double().sum().item()) for tensor in tensors_in(exported(*inputs))]
    model.train(was_training)
    return "\n".join(parts)


def _saved(model: nn.Module, file: Path, **_: Any) -> bytes:
    torch.save(model, file)
    return file.read_bytes()


def _pickled(model: nn.Module, name: str, file: Path, **_: Any) -> str:
    made = pickle.dumps(model)  # addresses are in it: what it names and what comes back is compared
    file.write_bytes(made)
    named = [str(value) for _, value, _ in pickletools.genops(made) if isinstance(value, str)]
    return "\n".join([*named, described(pickle.loads(made), name)])


def _copied(model: nn.Module, name: str, **_: Any) -> str:
    return described(copy.deepcopy(model), name)


def _scripted(exported: nn.Module, **_: Any) -> str:
    made = torch.jit.script(exported)
    return "\n".join(part.code for part in made.modules() if hasattr(part, "code"))


def _traced(exported: nn.Module, inputs: tuple[Any, ...], **_: Any) -> str:
    return str(torch.jit.trace(Tensors(exported), inputs, check_trace=False).inlined_graph)


def _symbolic(exported: nn.Module, **_: Any) -> str:
    made = torch.fx.symbolic_trace(exported)
    return f"{made.code}\n{made.graph}"


def _exported(exported: nn.Module, inputs: tuple[Any, ...], **_: Any) -> str:
    return str(torch.export.export(exported, inputs))


def _onnx(exported: nn.Module, inputs: tuple[Any, ...], name: str, **_: Any) -> bytes:
    if name in TORCHVISION:  # the exporter that takes detectors; the other one begins with `torch.export`
        written = io.BytesIO()
        torch.onnx.export(exported, inputs, written, dynamo=False, verbose=False)
        return written.getvalue()
    program = torch.onnx.export(exported, inputs, dynamo=True, verbose=False)
    assert program is not None
    return program.model_proto.SerializeToString(deterministic=True)


def _receive(model: nn.Module, name: str, answers: Any) -> None:
    """In a spawned process."""
    torch.set_num_threads(1)
    try:
        import detscope  # noqa: F401
    except ModuleNotFoundError:
        answers.put(described(model, name))
    else:
        answers.put("detscope is there")


def _sent(model: nn.Module, name: str, **_: Any) -> str:
    spawning = multiprocessing.get_context("spawn")
    answers = spawning.Queue()
    child = spawning.Process(target=_receive, args=(model, name, answers))
    child.start()
    while child.is_alive() and answers.empty():
        child.join(0.05)
    text: str = answers.get(timeout=5)
    child.join()
    return text


OPERATIONS: dict[str, Callable[..., str | bytes]] = {
    "save": _saved,
    "pickle": _pickled,
    "deepcopy": _copied,
    "script": _scripted,
    "trace": _traced,
    "fx": _symbolic,
    "export": _exported,
    "onnx": _onnx,
    "spawn": _sent,
}


def try_all(name: str, model: nn.Module, state: dict[str, Any], out: Path, kind: str) -> dict[str, Any]:
    """What each operation gives: a digest, or the exception."""
    found: dict[str, Any] = {}
    for operation, run in OPERATIONS.items():
        if operation not in os.environ.get("SAVED_ONLY", " ".join(OPERATIONS)).split():
            continue
        model.load_state_dict(state)  # every step then has the same model to save
        model.zero_grad(set_to_none=True)
        torch.manual_seed(0)
        is_kept = operation in ("save", "pickle", "deepcopy", "spawn")
        exported, inputs = example(name, model if is_kept else model.eval())
        folder = out / f"{name.replace(' ', '_')}-{kind}"
        folder.mkdir(exist_ok=True)  # the name of a file is in what torch saves
        try:
            made = run(model=model, name=name, exported=exported, inputs=inputs, file=folder / operation)
        except Exception as error:
            text = re.sub(r"0x[0-9a-f]+", "0x", f"{type(error).__name__}: {error}")
            found[operation] = {"raised": text}
        else:
            bytes_ = made.encode() if isinstance(made, str) else made
            digest = hashlib.sha256(bytes_).hexdigest()
            found[operation] = {"result": digest, "ours": b"detscope" in bytes_}
            if "SAVED_KEEP" in os.environ:
                (folder / f"{operation}.kept").write_bytes(bytes_)
        model.train()
    return found


def _kind_of_step() -> str:
    """How the step under way is recorded; asked of whoever records, without importing it."""
    recorders = [
        one for one in gc.get_objects() if type(one).__name__ in ("PublishingRecorder", "ScriptRecorder")
    ]
    return next((one.step.mode for one in recorders if one.step is not None), "")


def main() -> None:
    """Train, and try everything in the first step of each kind."""
    name, out = sys.argv[1], Path(sys.argv[2])
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = NETS[name]().train()
    state = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batches: Iterator[int] = iter(range(STEPS))
    recorder = None
    if "--recorder" in sys.argv:
        import detscope

        recorder = detscope.Recorder(model, optimizer, out / "runs", level="ops", memory=True).__enter__()
        batches = recorder.steps(list(batches))
    kinds = [kind for kind in KINDS if kind in os.environ.get("SAVED_KINDS", " ".join(KINDS)).split()]
    plain = {int(at): kind for kind, at in json.loads(os.environ.get("SAVED_STEPS", "{}")).items()}
    found: dict[str, Any] = {}
    at: dict[str, int] = {}
    for step in range(STEPS):
        next(batches)
        loss = training_loss(name, model)
        if len(found) == len(kinds):
            break
        kind = plain.get(step, "") if plain else _kind_of_step()
        if kind in kinds and kind not in found:
            found[kind], at[kind] = try_all(name, model, state, out, kind), step
        else:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if recorder is not None:
        recorder.__exit__(None, None, None)
    (out / "found.json").write_text(json.dumps(found))
    (out / "steps.json").write_text(json.dumps(at))


if __name__ == "__main__":
    main()
