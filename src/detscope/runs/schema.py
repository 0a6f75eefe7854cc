"""The tables of a run and their columns.

The version is raised when a reader of the old shape would misread the new.

Version history:
1 - steps, content, losses, spans, nodes, ops, loader, telemetry, timeline; run.json and config.toml.
    Added since without a new version, because older readers are not misled: images.
"""

from __future__ import annotations

SCHEMA_VERSION = 1

# column -> polars type name; times are ns of the machine's monotonic clock
TABLES: dict[str, dict[str, str]] = {
    # one row per step and phase
    "steps": {
        "step": "Int64",
        "epoch": "Int64",
        "mode": "String",  # warmup, recorded, bare, ops
        "phase": "String",  # data, transfer, forward, backward, optimizer, other; "step" is the whole
        "start_ns": "Int64",
        "wall_ns": "Int64",
        "device_ns": "Int64",  # null without a device clock
    },
    # one row per step: what was in it
    "content": {
        "step": "Int64",
        "images": "Int64",
        "boxes": "Int64",
        "pixels": "Int64",
        "network_pixels": "Int64",
        "padded_pixels": "Int64",
        "proposals": "Int64",
        "sampled_rois": "Int64",
        "detections": "Int64",
        "pause_ns": "Int64",  # the recorder's own work before this step, outside of it
        "first_of_epoch": "Boolean",
        "image_ids": "String",
    },
    # one row per image of an inference step
    "images": {
        "step": "Int64",
        "position": "Int64",  # in its batch
        "name": "String",
        "width": "Int64",
        "height": "Int64",
        "detections": "Int64",  # null where the model's output is not a list of detections
        "above_score": "Int64",
    },
    # losses of a step: "loss" is their sum
    "losses": {"step": "Int64", "name": "String", "value": "Float64"},
    # one row per step, kind, path and direction
    "spans": {
        "step": "Int64",
        "kind": "String",  # stage, module, method, function, region, outside
        "path": "String",
        "direction": "String",  # forward, backward, recompute
        "calls": "Int64",
        "total_ns": "Int64",
        "self_ns": "Int64",
        "device_total_ns": "Int64",
        "device_self_ns": "Int64",
    },
    # one row per node: what the paths in `spans` are
    "nodes": {
        "kind": "String",
        "path": "String",
        "type": "String",
        "stage": "String",
        "parameters": "Int64",
    },
    # operators of the recorded window
    "ops": {
        "name": "String",
        "module": "String",
        "stage": "String",
        "phase": "String",
        "direction": "String",
        "shapes": "String",
        "count": "Int64",
        "total_ns": "Int64",
        "self_ns": "Int64",
        "device_ns": "Int64",
        "kernels": "Int64",
    },
    # one row per batch and region of work in a loader worker
    "loader": {
        "step": "Int64",
        "worker": "Int64",
        "pid": "Int64",
        "region": "String",  # load, decode, transform, collate; "batch" is the whole
        "start_ns": "Int64",
        "wall_ns": "Int64",
        "images": "Int64",
        "wait_ns": "Int64",  # how long the loop waited for this batch
    },
    "telemetry": {
        "time_ns": "Int64",
        "source": "String",
        "metric": "String",
        "value": "Float64",
        "unit": "String",
    },
    # intervals of the steps that are drawn into the trace
    "timeline": {
        "step": "Int64",
        "track": "String",  # phases, stages, modules, operators, kernels, worker <n>
        "name": "String",
        "direction": "String",
        "start_ns": "Int64",
        "wall_ns": "Int64",
    },
}

STATUSES = ("ok", "partial", "failed")
