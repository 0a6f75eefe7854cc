"""Where the stages of transformers' detectors are in its code, by names of classes and the layout of a model.

Nothing is imported: a model that is there has brought its library along. Much of these detectors is code
between modules, in one long `forward`: such stages are what a module does itself after one of its parts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from detscope.zoo.contract import BEGIN, Stage

if TYPE_CHECKING:
    from torch import nn

_LOSSES = "transformers.loss.loss_"
_MATCHERS = {
    "for_object_detection": "HungarianMatcher",
    "deformable_detr": "DeformableDetrHungarianMatcher",
    "rt_detr": "RTDetrHungarianMatcher",
    "lw_detr": "LwDetrHungarianMatcher",
    "rf_detr": "RfDetrHungarianMatcher",
}
# which criterion asks which matchers; D-FINE's is one of RT-DETR's
_CRITERIA = {
    "for_object_detection:ImageLoss": ("for_object_detection", "deformable_detr"),
    "rt_detr:RTDetrLoss": ("rt_detr",),
    "lw_detr:LwDetrImageLoss": ("lw_detr",),
    "rf_detr:RfDetrImageLoss": ("rf_detr",),
}
_GETTERS = (
    "for_object_detection:ImageLoss",
    "rt_detr:RTDetrLoss",
    "d_fine:DFineLoss",
    "lw_detr:LwDetrImageLoss",
)
_LAYER_PARTS = {
    "self_attention": ("self_attn", "self_attn_layer_norm", "attention", "layernorm_before"),
    "cross_attention": (
        *("encoder_attn", "encoder_attn_layer_norm", "gateway"),
        *("cross_attn", "cross_attn_layer_norm"),
    ),
    "feed_forward": (
        *("mlp", "fc1", "activation_fn", "fc2", "final_layer_norm", "layer_norm"),
        *("layernorm_after", "intermediate", "output"),
    ),
}


_ORDER = (
    *("preprocess", "backbone", "input_projection", "encoder", "query_selection", "denoising", "decoder"),
    *("heads", "matcher", "loss", "postprocess"),
)


class Layout:
    """A network as a list of paths, and the stages that were found on it."""

    def __init__(self, network: nn.Module) -> None:
        self._paths = dict(network.named_modules(remove_duplicate=False))
        self.stages: list[Stage] = []
        config: Any = getattr(network, "config", None)
        self.has_auxiliary = bool(getattr(config, "auxiliary_loss", False))
        # the module of transformers that holds the class, whoever derived from it
        names = (kind.__module__ for kind in type(network).__mro__)
        self.library = next((name for name in names if name.startswith("transformers.models.")), "")

    def has(self, path: str) -> bool:
        """Whether there is such a module."""
        return path in self._paths

    def list_children(self, path: str) -> list[str]:
        """Paths of what a module holds."""
        return [f"{path}.{name}" for name, _ in self._paths[path].named_children()] if self.has(path) else []

    def count_layers(self, path: str) -> int:
        """How many layers a list of modules has."""
        return len(self.list_children(path))

    def add_module(self, name: str, *paths: str) -> None:
        """Modules that are a stage, those that there are."""
        self.stages += [Stage(name, path) for path in paths if self.has(path)]

    def add_part(self, name: str, caller: str, *after: str) -> None:
        """What a module does itself after others, or from its begin."""
        self.stages += [
            Stage(name, caller, one) for one in after if self.has(one) or one[-1] == ")" or ":" in one
        ]

    def name_ends(self, body: str) -> None:
        """What a network does before and after its body, and its body before all parts: masks, heads."""
        self.add_part("preprocess", "", BEGIN)
        self.add_part("preprocess", body, BEGIN)
        self.add_part("heads", "", body)
        self.add_part("loss", "", "loss_function()")

    def add_layers(self, path: str, name: Callable[[int], str]) -> None:
        """Layers of a transformer with their parts."""
        for index, layer in enumerate(self.list_children(path)):
            self.add_module(name(index), layer)
            for part, modules in _LAYER_PARTS.items():
                self.add_module(f"{name(index)}.{part}", *(f"{layer}.{one}" for one in modules))


def name_backbone(layout: Layout, path: str) -> None:
    """A backbone, with its stages where it is one that has them."""
    layout.add_module("backbone", path)
    for inner in (f"{path}.model", f"{path}.backbone"):
        layout.add_module("backbone.stem", f"{inner}.embedder", f"{inner}.conv1", f"{inner}.bn1")
        layout.add_module("backbone.embeddings", f"{inner}.embeddings")
        stages = layout.list_children(f"{inner}.encoder.stages")
        stages = stages or [
            one for one in layout.list_children(inner) if one.split(".")[-1].startswith("layer")
        ]
        for index, stage in enumerate(stages):
            layout.add_module(f"backbone.stage_{index + 1}", stage)
        layout.add_layers(f"{inner}.encoder.layer", lambda index: f"backbone.layers.layer_{index}")


def name_fusion(layout: Layout, encoder: str) -> None:
    """A hybrid encoder: attention on one level, then a pyramid up and down."""
    layout.add_module("encoder", encoder)
    layout.add_module("encoder.layers", *layout.list_children(f"{encoder}.aifi"))
    for name, kinds in (
        ("encoder.fusion_up", ("lateral_convs", "fpn_blocks")),
        ("encoder.fusion_down", ("downsample_convs", "pan_blocks")),
    ):
        modules = [path for kind in kinds for path in layout.list_children(f"{encoder}.{kind}")]
        layout.add_module(name, *modules)
        layout.add_part(name, encoder, *modules)


def name_encoder(layout: Layout, encoder: str, layers: str) -> None:
    """An encoder of plain layers."""
    layout.add_module("encoder", encoder)
    layout.add_layers(layers, lambda index: f"encoder.layers.layer_{index}")


def name_decoder(layout: Layout, decoder: str) -> None:
    """A decoder layer by layer; heads that refine boxes between layers are heads."""
    layout.add_module("decoder", decoder)
    positions = [
        path for path in (f"{decoder}.query_pos_head", f"{decoder}.ref_point_head") if layout.has(path)
    ]
    layout.add_module("decoder.positions", *positions)
    layout.add_layers(f"{decoder}.layers", lambda index: f"decoder.layer_{index}")
    layers = layout.list_children(f"{decoder}.layers")
    heads = [
        *layout.list_children(f"{decoder}.class_embed")[: len(layers)],
        *layout.list_children(f"{decoder}.bbox_embed")[: len(layers)],
    ]
    if heads:
        layout.add_module("heads", *heads)
        layout.add_part("heads", decoder, *layers)
        layout.add_part("decoder.positions", decoder, *positions)


def name_selecting(layout: Layout) -> None:
    """RT-DETR and its kin up to their heads: one long `forward` from pixels to queries."""
    model, denoising = "model", f"{layout.library}:get_contrastive_denoising_training_group"
    anchors, selecting = "model.generate_anchors()", "query_selection"
    name_backbone(layout, "model.backbone")
    layout.add_module("input_projection", *layout.list_children("model.encoder_input_proj"))
    layout.add_part("input_projection", model, "model.backbone")
    name_fusion(layout, "model.encoder")
    layout.stages += [Stage("denoising", denoising), Stage(selecting, anchors)]
    layout.add_module(
        selecting, *(f"model.{one}" for one in ("enc_output", "enc_score_head", "enc_bbox_head"))
    )
    layout.add_part(selecting, model, denoising, anchors, "model.enc_output")
    layout.add_module("decoder.input_projection", *layout.list_children("model.decoder_input_proj"))
    layout.add_part("decoder.input_projection", model, "model.encoder")
    name_decoder(layout, "model.decoder")
    layout.add_part("decoder", model, "model.decoder")
    layout.name_ends(model)


def name_losses(layout: Layout, auxiliary: int, encoder: bool) -> None:
    """Matching and losses: objects that hang on no model, made anew at every step."""
    layout.stages.append(Stage("loss", "loss_function()"))
    layout.stages += _name_matchers()
    parts = ["loss.main", *(f"loss.auxiliary_{index}" for index in range(auxiliary))]
    parts += ["loss.encoder"] * encoder
    for criterion, matchers in _CRITERIA.items():
        target = f"{_LOSSES}{criterion}.forward"
        layout.stages.append(Stage("loss", target))
        for part in parts:
            layout.stages += [Stage(part, target, _matcher_of(matcher)) for matcher in matchers]
    denoising = f"{_LOSSES}rt_detr:RTDetrLoss"
    layout.stages.append(
        Stage("loss.denoising", f"{denoising}.forward", f"{denoising}.get_cdn_matched_indices")
    )
    layout.stages += [Stage("", f"{_LOSSES}{one}.get_loss") for one in _GETTERS]


def _matcher_of(library: str) -> str:
    return f"{_LOSSES}{library}:{_MATCHERS[library]}.forward"


def _name_matchers() -> Iterator[Stage]:
    for library in _MATCHERS:
        matcher, assignment = _matcher_of(library), f"{_LOSSES}{library}:linear_sum_assignment"
        yield Stage("matcher.cost", matcher)
        # the last thing done to costs where they were made; on a device the copy waits for all of them
        yield Stage("matcher.copy_to_host", matcher, "torch:nan_to_num")
        yield Stage("matcher.assignment", assignment)
        yield Stage("matcher.indices", matcher, assignment)


def name_postprocess() -> Iterator[Stage]:
    """Image processors turn outputs into boxes; whichever are loaded."""
    method = "post_process_object_detection"
    for library, module in list(sys.modules.items()):
        if library.startswith("transformers.models.") and ".image_processing_" in library:
            for name, kind in list(vars(module).items()):
                if isinstance(kind, type) and kind.__module__ == library and method in vars(kind):
                    yield Stage("postprocess", f"{library}:{name}.{method}")


def find_network_stages(network: nn.Module, name_parts: Callable[[Layout], None]) -> list[Stage]:
    """All of a network: those of its family, and what is the same in all."""
    layout = Layout(network)
    name_parts(layout)
    return [*layout.stages, *name_postprocess()]


def put_in_order(stages: Iterable[Stage]) -> list[Stage]:
    """As a step passes through them; within an outermost stage as they came."""
    rank = {name: index for index, name in enumerate(_ORDER)}
    return sorted(stages, key=lambda stage: rank.get(stage.name.partition(".")[0], len(rank)))
