"""A name or a folder in, a network ready to run out.

A name means a detector of the zoo, a classifier of torchvision or timm, or one's own `file.py:factory`.
Random batches to feed it are enough where only the cost matters.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from detscope.errors import UsageError
from detscope.zoo.contract import BuildOptions
from detscope.zoo.families.efficientdet import quiet_effdet
from detscope.zoo.family import USUAL_SIZE
from detscope.zoo.outputs import check_losses
from detscope.zoo.registry import build_model, get_card, list_cards, recognise_family
from detscope.zoo.structure import count_parameters

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Kind = Literal["classifier", "detector"]
BOXES_PER_IMAGE = 5
KEYPOINTS = 17
_AUXILIARY_WEIGHT = 0.3  # as GoogLeNet was trained: each side classifier counts a third of the main one

_TIMM = "timm/"
_OWN_SIZE = {"inception_v3": 299}  # its side classifier leaves no pixel of smaller images
_CLASSES = 1000
_USER_CLASSES = 2  # with background: nobody knows more of a user's model
_INITIALISERS = (
    "uniform_",
    "normal_",
    "trunc_normal_",
    "orthogonal_",
    "xavier_uniform_",
    "xavier_normal_",
    "kaiming_uniform_",
    "kaiming_normal_",
)


@dataclass(frozen=True)
class NetworkBase:
    """A model by name, before it is built."""

    name: str  # as its source knows it
    source: str  # "torchvision", "timm", "zoo" or "user"
    kind: Kind

    @property
    def full_name(self) -> str:
        """The name that finds it again; a timm model may share its name with one of torchvision."""
        return f"timm/{self.name}" if self.source == "timm" else self.name


@dataclass(frozen=True)
class Batch:
    """What one training step is fed: a tensor and labels, or a list of images and of targets."""

    inputs: Any
    targets: Any


@dataclass(frozen=True)
class Network:
    """A network ready to run, with its random weights or with those of its folder."""

    name: str  # "resnet18", or the folder's: "resnet18-random-p30-s0"
    base: NetworkBase
    module: nn.Module
    image_size: int  # pixels of the square images that are fed to it
    num_classes: int  # of a detector: with background
    parameters: int
    min_train_batch: int = 1
    needs: tuple[str, ...] = ()  # extra targets of a detector: "masks", "keypoints"
    card: dict[str, Any] | None = None  # the folder's network.json; None where there is no folder

    @property
    def kind(self) -> Kind:
        """Whether it gives class scores or detections."""
        return self.base.kind

    def example_input(self, batch_size: int = 1, *, seed: int = 0, device: str = "cpu") -> Any:
        """Random square images: a tensor for a classifier, a list for a detector; the same for a seed."""
        import torch

        if batch_size < 1:
            raise UsageError(f"batch size {batch_size}: a batch has at least one image", "use 1 or more")
        generator = torch.Generator().manual_seed(seed)
        side = self.image_size
        images = torch.rand(batch_size, 3, side, side, generator=generator).to(device)
        return images if self.kind == "classifier" else list(images)

    def random_batch(self, batch_size: int, *, seed: int = 0, device: str = "cpu") -> Batch:
        """Random images with labels or boxes to train on; the same for the same seed."""
        import torch

        images = self.example_input(batch_size, seed=seed, device=device)
        generator = torch.Generator().manual_seed(seed + 1)
        if self.kind == "classifier":
            labels = torch.randint(self.num_classes, (batch_size,), generator=generator)
            return Batch(images, labels.to(device))
        return Batch(images, [_draw_target(self, generator, device) for _ in range(batch_size)])

    def loss(self, batch: Batch) -> Tensor:
        """Forward in training mode: cross entropy (of side classifiers too), or the sum of all losses."""
        import torch

        module = self.module.train()
        if self.kind == "detector":
            losses: dict[str, Tensor] = module(batch.inputs, batch.targets)
            check_losses(losses, module)
            return torch.stack([loss.reshape(()) for loss in losses.values()]).sum()
        main, *auxiliary = list_outputs(module(batch.inputs))
        cross_entropy = torch.nn.functional.cross_entropy
        total = cross_entropy(main, batch.targets)
        for logits in auxiliary:
            total = total + _AUXILIARY_WEIGHT * cross_entropy(logits, batch.targets)
        return total

    def infer(self, inputs: Any) -> Any:
        """Forward in evaluation mode, without gradients."""
        import torch

        self.module.eval()
        with torch.no_grad():
            return self.module(inputs)

    def to(self, device: str | torch.device) -> Network:
        """The same network, its module moved."""
        self.module.to(device)
        return self


def list_outputs(output: Any) -> list[Tensor]:
    """The tensors that a classifier gave, its own before those of side classifiers."""
    parts = [output] if hasattr(output, "shape") else list(output)
    return [part for part in parts if part is not None]


def _draw_target(network: Network, generator: Any, device: str) -> dict[str, Tensor]:
    import torch

    side = network.image_size
    corners = torch.rand(BOXES_PER_IMAGE, 2, generator=generator) * 0.6 * side
    sizes = (0.1 + 0.3 * torch.rand(BOXES_PER_IMAGE, 2, generator=generator)) * side
    boxes = torch.cat([corners, corners + sizes], dim=1)
    labels = torch.randint(1, max(2, network.num_classes), (BOXES_PER_IMAGE,), generator=generator)
    target = {"boxes": boxes, "labels": labels}
    if "masks" in network.needs:
        target["masks"] = masks = torch.zeros(len(boxes), side, side, dtype=torch.uint8)
        for mask, (left, top, right, bottom) in zip(masks, boxes.round().long().tolist(), strict=True):
            mask[top:bottom, left:right] = 1
    if "keypoints" in network.needs:
        places = torch.rand(BOXES_PER_IMAGE, KEYPOINTS, 2, generator=generator)
        points = boxes[:, None, :2] + places * sizes[:, None, :]
        target["keypoints"] = torch.cat([points, torch.ones(BOXES_PER_IMAGE, KEYPOINTS, 1)], dim=2)
    return {name: value.to(device) for name, value in target.items()}


def load_network(name_or_folder: str | Path, *, seed: int = 0, image_size: int | None = None) -> Network:
    """A network by the name of its model (random weights of `seed`) or by its folder (its own weights).

    Names: detectors of `detscope models`, classifiers of torchvision, models of timm (`timm/NAME` where
    both have the name), `file.py:factory`. A folder is one that `detscope prune` made.
    """
    from detscope.zoo.pruning.folder import is_network_folder, read_folder

    given = str(name_or_folder)
    path = Path(given)
    if isinstance(name_or_folder, Path) or is_network_folder(path) or (path.is_dir() and "/" in given):
        from detscope.zoo.pruning.pruner import rebuild_network

        return rebuild_network(read_folder(path), image_size)
    return build_network(find_base(given), seed=seed, image_size=image_size)


def find_base(name: str) -> NetworkBase:
    """The model of this name; where torchvision and timm share one, torchvision's is meant."""
    if ":" in name:
        get_card(name)  # a wrong path is an error already here
        return NetworkBase(name, "user", "detector")
    if name.startswith(_TIMM):
        name = name.removeprefix(_TIMM)
        with _import_timm() as timm:
            if not timm.is_model(name):
                close = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.5)
                hint = (
                    f"did you mean {' or '.join(_TIMM + one for one in close)}?"
                    if close
                    else "timm.list_models() lists them"
                )
                raise UsageError(f"timm has no model named {name!r}", hint)
        return NetworkBase(name, "timm", "classifier")
    try:
        return NetworkBase(get_card(name).name, "zoo", "detector")
    except UsageError:
        pass
    if name in list_classifiers():
        return NetworkBase(name, "torchvision", "classifier")
    with _import_timm() as timm:
        if timm.is_model(name):
            return NetworkBase(name, "timm", "classifier")
        known = [*(card.name for card in list_cards()), *list_classifiers(), *timm.list_models()]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}?" if close else "a classifier of torchvision or timm"
    raise UsageError(f"no network named {name!r}", f"{hint} `detscope models` lists the detectors")


def build_network(base: NetworkBase, *, seed: int = 0, image_size: int | None = None) -> Network:
    """Build a network; the same seed gives the same random weights."""
    if image_size is not None and image_size < 1:
        raise UsageError(f"image size {image_size}: expected at least one pixel", "leave it out for its own")
    if base.kind == "classifier":
        return _build_classifier(base, seed, image_size)
    built = build_model(base.name, BuildOptions(weights="none", image_size=image_size, seed=seed))
    card, family = built.card, recognise_family(built.module)
    return Network(
        name=base.full_name,
        base=base,
        module=built.module,
        image_size=image_size or family.find_image_size(built.module),
        num_classes=_USER_CLASSES if base.source == "user" else family.count_classes(card),
        parameters=count_parameters(built.module),
        min_train_batch=card.min_train_batch,
        needs=card.needs,
    )


@cache
def list_classifiers() -> tuple[str, ...]:
    """Names of all image classifiers of torchvision."""
    from torchvision import models

    return tuple(models.list_models(module=models))


@contextmanager
def leave_weights_unfilled() -> Iterator[None]:
    """Leave parameters as their memory was found; buffers, anchors and shapes are made as always.

    For networks whose weights are read from a file right after: drawing the 133 million weights of a VGG
    takes seconds and touches half a gigabyte, for nothing.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    # Draws that do not go through torch.nn.init give a constant: some draw again until all is within bounds.
    first_argument = {torch.Tensor.uniform_: "from", torch.Tensor.normal_: "mean"}

    class _NothingDrawn(TorchFunctionMode):
        def __torch_function__(
            self,
            function: Callable[..., Any],
            types: Sequence[type],
            args: Sequence[Any] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            named = kwargs or {}
            if function in first_argument:
                value = args[1] if len(args) > 1 else named.get(first_argument[function], 0.0)
                return args[0].fill_(value)
            return function(*args, **named)

    own = {name: getattr(torch.nn.init, name) for name in _INITIALISERS}
    try:
        for name in own:
            setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
        with _NothingDrawn():
            yield
    finally:
        for name, initialiser in own.items():
            setattr(torch.nn.init, name, initialiser)


@contextmanager
def _import_timm() -> Iterator[Any]:
    with quiet_effdet(), warnings.catch_warnings():
        import timm

        yield timm


def _build_classifier(base: NetworkBase, seed: int, image_size: int | None) -> Network:
    from detscope.zoo.weights import seed_weights

    module: nn.Module
    with seed_weights(seed):
        if base.source == "timm":
            with _import_timm() as timm:
                module = timm.create_model(base.name, pretrained=False)
            if int(getattr(module, "num_classes", 0)) < 1:
                raise UsageError(f"timm/{base.name} gives no class scores", "choose a model that classifies")
        else:
            from torchvision.models import get_model_builder

            # both warn of a change of their default unless they are told
            more = {"init_weights": True} if base.name in ("googlenet", "inception_v3") else {}
            module = get_model_builder(base.name)(weights=None, **more)
    settings = getattr(module, "pretrained_cfg", None) or {}  # of timm; some of its models take one size only
    fixed = settings.get("input_size") if settings.get("fixed_input_size") else None
    size = image_size or _OWN_SIZE.get(base.name) or (int(fixed[-1]) if fixed else USUAL_SIZE)
    return Network(
        name=base.full_name,
        base=base,
        module=module,
        image_size=size,
        num_classes=_CLASSES if base.source == "torchvision" else int(getattr(module, "num_classes", 0)),
        parameters=count_parameters(module),
    )
