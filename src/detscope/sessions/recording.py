"""What train, infer and eval share: data opened, models described, a recorder made, one pass counted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from detscope.config.load import dump_settings
from detscope.config.schema import DataSettings, Settings
from detscope.data.registry import class_names, open_dataset
from detscope.faults import describe_error
from detscope.zoo.contract import BuildOptions, BuiltModel
from detscope.zoo.registry import get_family

if TYPE_CHECKING:
    import torch

    from detscope.data.contract import DetectionDataset, Split
    from detscope.record.recorder import Recorder
    from detscope.report.progress import Progress
    from detscope.runs.writer import RunWriter

LONGEST_PASS_MS = 3000.0  # counting runs the pass again and slower; a long one is not worth that


def download_progress(progress: Progress) -> Callable[[str, int, int | None], None]:
    """Downloads and generation speak of (label, done, total): one bar each."""
    state: dict[str, int] = {}

    def advance_bar(label: str, done: int, total: int | None) -> None:
        if label not in state:
            progress.start(total, label)
            state[label] = 0
        progress.advance(done - state[label])
        state[label] = done

    return advance_bar


def open_data(
    settings: Settings, data: DataSettings, needs: Collection[str], progress: Progress, split: Split = "train"
) -> DetectionDataset:
    """A data set with the masks and keypoints that are needed."""
    return open_dataset(
        data,
        need_masks="masks" in needs,
        need_keypoints="keypoints" in needs,
        seed=settings.training.seed,
        split=split,
        progress=download_progress(progress),
    )


def build_options(settings: Settings, num_classes: int | None) -> BuildOptions:
    """What the settings want of the model."""
    model = settings.model
    return BuildOptions(
        num_classes=num_classes,
        weights=model.weights,
        image_size=model.image_size,
        trainable_layers=model.trainable_layers,
        seed=settings.training.seed,
    )


def describe_model(built: BuiltModel) -> dict[str, Any]:
    """Name, family, size and weights, for `run.json`."""
    card, weights = built.card, built.weights
    parameters = sum(parameter.numel() for parameter in built.module.parameters())
    return {
        "model": {"name": card.name, "family": card.family, "source": card.source, "parameters": parameters},
        "weights": {
            "kind": weights.kind,
            "source": weights.source,
            "note": weights.note,
            "replaced": list(weights.replaced),
        },
    }


def coco_class_names(built: BuiltModel) -> tuple[str, ...]:
    """What the labels of published COCO weights mean."""
    return class_names("coco", get_family(built.card.family).class_count)


def make_recorder(
    settings: Settings,
    built: BuiltModel,
    optimizer: torch.optim.Optimizer | None,
    info: dict[str, Any],
    verb: str,
) -> Recorder:
    """A recorder for `train` or `infer`; it attaches when it is entered."""
    from detscope.record.recorder import Recorder

    part = settings.training if verb == "train" else settings.inference
    return Recorder(
        built.module,
        optimizer,
        settings.output.runs,
        stages=built.stages,
        observers=built.observers,
        warmup_steps=part.warmup_steps,
        seed=settings.training.seed,
        name=built.card.name,
        verb=verb,
        info=info,
        config_toml=dump_settings(settings, verb),
        **settings.record.model_dump(),
    )


def add_costs(
    writer: RunWriter,
    built: BuiltModel,
    one_pass: Callable[[], object],
    *,
    images: int,
    modules: str,
    device: str,
    precision: str,
) -> None:
    """FLOPs and bytes of one pass and this machine's peak, added to a run that is already safe on disk.

    A run is never lost for it: what went wrong is said there.
    """
    import polars as pl
    import torch

    from detscope.analyze.step.steps import choose_typical_steps
    from detscope.machine.peak import machine_peak
    from detscope.record.counting import count_costs
    from detscope.runs.reader import load_run
    from detscope.runs.writer import polars_schema, write_table

    pass_ms = choose_typical_steps(load_run(writer.folder).table("steps")).p50_ms
    if modules == "none" or pass_ms is None:
        return
    told: dict[str, Any]
    if pass_ms > LONGEST_PASS_MS:
        told = {"why": f"a pass takes {pass_ms / 1e3:.1f} s: too long to be run again for counting"}
    else:
        try:
            costs = count_costs(built.module, one_pass, built.stages, modules)
            rows = [
                (c.kind, c.path, c.direction, c.flops, c.self_flops, c.bytes, c.self_bytes)
                for c in costs
                if c.bytes or c.flops
            ]
            told = {"images": images, "peak": machine_peak(device, torch.get_num_threads(), precision)}
        except Exception as error:  # whatever a model does with an unusual mode, its times are already safe
            told = {"why": f"counting failed: {describe_error(error)}"}
        else:
            frame = pl.DataFrame(rows, schema=polars_schema("costs"), orient="row")
            write_table(writer.folder / "costs.parquet", frame)
    writer.info["costs"] = told
    writer.save_info()
