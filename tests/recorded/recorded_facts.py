"""The recorded files that tests need, reduced to their facts: `python tests/recorded/recorded_facts.py DATA`.

Without a folder of recorded files the facts beside this file are turned back into each format, so that the
published figures are checked everywhere. What was kept, whose it is and which figures it holds:
facts/README.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl
from facts_kineto import reduce_trace, restore_trace
from facts_listings import reduce_layers, reduce_listing, restore_layers, restore_listing
from facts_memory import reduce_snapshot, reduce_timeline, restore_snapshot, restore_timeline
from facts_nsys import reduce_export, restore_export

FACTS = Path(__file__).parent / "facts"
HEADS = FACTS / "kineto_heads.json"
TRACES = (
    *("a100_6streams_unlinked", "a100_alexnet_cupti_counters", "a100_simple_add_sync", "compare_base"),
    *("compare_test", "cpu_only", "h100_Falconsai_nsfw_image_detection"),
    *("h100_facebook_timesformer-base-finetuned-k400", "h100_gaunernst_bert-small-uncased"),
    *("mi210_gpu_only", "multirank_rank0", "multirank_rank1", "no_distributed_info", "rank_non_gpu"),
    *("rtx2080ti_resnet_train", "torch_compile_triton", "v100_ddp_train_ns"),
    *("v100_rank1of2_memory_events", "v100_resnet50_train_workers0"),
)
KINETO = (*(f"traces/kineto/{name}.json.gz" for name in TRACES), "traces/kineto/cpu_fasterrcnn_torch14.json")
NSYS = ("a100_cloverleaf", "h100_2gpu_1s", "healthy_1pct", "mock", "t4_power_iteration")
NCU = ("bert_attention", "conv2d", "copy_blocked_details_page", "relu", "upsample_nearest")
TABLES = {
    **{f"traces/nsys/{name}.sqlite": (reduce_export, restore_export) for name in NSYS},
    **{f"traces/ncu/{name}.csv": (reduce_listing, restore_listing) for name in NCU},
    "traces/nsys/a100_cloverleaf.gpu_trace.csv": (reduce_listing, restore_listing),
    "traces/memory_timeline/memory_timeline.raw.json.gz": (reduce_timeline, restore_timeline),
    "traces/snapshot/memory_snapshot.pickle": (reduce_snapshot, restore_snapshot),
    "prediction/tx2/measured.csv": (reduce_listing, restore_listing),
    "prediction/tx2/memory_with_oom.csv": (reduce_listing, restore_listing),
    "prediction/tx2/layers.json": (reduce_layers, restore_layers),
}


def facts_of(name: str) -> Path:
    """Where the facts of a recorded file are kept."""
    return FACTS / f"{Path(name).name}.parquet"


def write_facts(recorded: Path) -> None:
    """Reduce every recorded file that tests need."""
    heads = {}
    for name in KINETO:
        frame, heads[name] = reduce_trace(recorded / name)
        _keep(frame, name)
    for name, (reduce, _) in TABLES.items():
        _keep(reduce(recorded / name), name)
    HEADS.write_text(json.dumps(heads, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _keep(frame: pl.DataFrame, name: str) -> None:
    frame.write_parquet(facts_of(name), compression="zstd", compression_level=19, statistics=False)


def restore_all(folder: Path) -> None:
    """Turn all facts back into files of their formats, in the places where the recorded ones lie."""
    heads = json.loads(HEADS.read_text(encoding="utf-8"))
    for name in (*KINETO, *TABLES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        frame = pl.read_parquet(facts_of(name))
        if name in heads:
            restore_trace(frame, heads[name], folder / name)
        else:
            TABLES[name][1](frame, folder / name)


if __name__ == "__main__":
    write_facts(Path(sys.argv[1]))
