"""The tables of a run and their columns.

The version is raised when a reader of the old shape would misread the new.

Version history:
1 - steps, content, losses, spans, nodes, ops, loader, telemetry, timeline; run.json and config.toml.
    Added since without a new version, because older readers are not misled: images, memory,
    memory_levels, memory_changes, device_events, host_events, kernel_metrics, accuracy, costs,
    rank_steps, rank_content, rank_timeline, communication, transforms, census; in loader: receive_ns,
    tensors; in transforms: stands_for; in communication: phase, group, blocked_after_ns, blocked_ns;
    device_steps, device_spans, which take the place of the columns device_ns, device_total_ns and
    device_self_ns (no longer written).
"""

from __future__ import annotations

SCHEMA_VERSION = 1

# column -> polars type name; times are ns of the machine's monotonic clock
TABLES: dict[str, dict[str, str]] = {
    # one row per step and phase
    "steps": {
        "step": "Int64",
        "epoch": "Int64",
        "mode": "String",  # warmup, recorded, bare, ops, memory, census
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
        "kind": "String",  # stage, module, method, function, region, part (beside the model), outside
        "path": "String",
        "direction": "String",  # forward, backward, recompute
        "calls": "Int64",
        "total_ns": "Int64",
        "self_ns": "Int64",
        "device_total_ns": "Int64",
        "device_self_ns": "Int64",
    },
    # on a device with a clock of its own, by its marks: one row per step and phase, as in `steps`; the phases
    # of one stream are its step, times are on the host's clock, by a mark that both have seen
    "device_steps": {
        "step": "Int64",
        "phase": "String",  # data (the device waited for a batch), ..., other; "step" is the whole
        "stream": "Int64",  # 0: the one the model runs on; others run beside it
        "start_ns": "Int64",  # when the device came to it
        "wall_ns": "Int64",  # until it was through
        "idle_ns": "Int64",  # of that at most: the host had not queued what comes next
        "ahead_ns": "Int64",  # how far the host was ahead when it had queued the last of it
    },
    # the same of stages, modules, methods, functions and regions; of modules those whose turn it was
    "device_spans": {
        "step": "Int64",
        "kind": "String",  # stage, module, method, function, region, outside
        "path": "String",
        "parent": "String",  # path of the node that called it; null: the outermost
        "direction": "String",  # forward, backward, recompute
        "calls": "Int64",
        "wall_ns": "Int64",  # stages: without their parts; all others: with what they call
        "idle_ns": "Int64",  # of that at most
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
    # arithmetic of one pass, counted: by node and direction
    "costs": {
        "kind": "String",
        "path": "String",
        "direction": "String",
        "flops": "Int64",  # with what lies below; self: without
        "self_flops": "Int64",
        "bytes": "Int64",
        "self_bytes": "Int64",
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
        "receive_ns": "Int64",  # of that: after the worker had made it; null without workers
        "tensors": "Int64",  # that the worker sent it in; null without workers
    },
    # one row per batch and name of work in a loader worker, without those that began no call
    "transforms": {
        "step": "Int64",
        "worker": "Int64",  # -1: the loop itself
        "name": "String",
        "kind": "String",  # transform, dataset, decode, region, collate; sampled; "batch" is the whole
        "origin": "String",  # class with its module; of sampled ones file:line
        "inside": "String",  # the transform that it is a part of; of sampled ones in which it was seen
        "where": "String",  # worker, loop; batch, device: on whole batches, in the loop
        "images": "Int64",
        "own_ns": "Int64",  # without its parts; null where sampled
        "total_ns": "Int64",
        "calls": "Int64",
        "applied": "Int64",  # calls that gave another image than they took
        "looks": "Int64",  # of the timer; null where not sampled
        "stands_for": "Int64",  # batches, of which this one was drawn to be timed; null: all are
    },
    # one row per census step, kind, operator and place in the code
    "census": {
        "step": "Int64",
        "phase": "String",
        "kind": "String",  # read, size, copy: the host waits; feed, index, launch; those that patterns add
        "what": "String",  # operator or method
        "file": "String",  # of the innermost line outside of torch; packages with their folders
        "line": "Int64",
        "function": "String",
        "own_file": "String",  # of the script's own innermost line; the same where it is that
        "own_line": "Int64",
        "own_function": "String",
        "count": "Int64",
        "in_call": "Int64",  # the most within one call of the function
        "host_ns": "Int64",  # in these operators, on the host's clock
        "bytes": "Int64",  # moved or made
        "code": "String",  # text of the line
        "around": "String",  # check, loop, comprehension: the statement around it
        "detail": "String",  # `key=value` words
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
    # one row per block of memory that was alive during a recorded step: its whole life
    "memory": {
        "block": "Int64",
        "device": "String",
        "bytes": "Int64",
        "alloc_ns": "Int64",  # null: alive before recording began
        "free_ns": "Int64",  # null: alive when recording ended
        "step": "Int64",  # in which it was allocated; null: before recording
        "phase": "String",
        "free_step": "Int64",
        "free_phase": "String",
        "direction": "String",  # forward, backward, recompute
        "stage": "String",
        "module": "String",
        "operator": "String",
        # parameters, gradients, optimizer, inputs, activations, temporary, workspace, unknown
        "category": "String",
        "name": "String",  # of a parameter, a gradient, an input; null where there is none
        "shape": "String",  # 2x3x64; null where it could not be seen
        "dtype": "String",
        "stack": "String",  # files recorded elsewhere: the innermost line of user code
    },
    # what else is known of memory at a moment: reserved by the allocator, held by the process
    "memory_levels": {
        "time_ns": "Int64",
        "step": "Int64",
        "device": "String",
        "level": "String",  # reserved, fragmented, largest_free, beside, process, process_peak, worker <pid>
        "bytes": "Int64",
    },
    # files recorded elsewhere that tell changes and not blocks
    "memory_changes": {
        "time_ns": "Int64",
        "device": "String",
        "category": "String",
        "delta_bytes": "Int64",
    },
    # what ran on a device: one row per kernel, copy, set and device-side synchronisation
    "device_events": {
        "rank": "Int64",
        "device": "Int64",
        "stream": "Int64",
        "kind": "String",  # kernel, copy, set, sync
        "name": "String",
        "start_ns": "Int64",
        "wall_ns": "Int64",
        "correlation": "Int64",
        "launch_ns": "Int64",  # begin of the host call that queued it; null: no launch record
        "launch_wall_ns": "Int64",
        "launch_thread": "Int64",
        "operator": "String",
        "module": "String",
        "direction": "String",
        "stage": "String",
        "phase": "String",
        "step": "Int64",
        "bytes": "Int64",
        "copy": "String",  # HtoD, DtoH, DtoD, PtoP
        "communication": "Boolean",
        "blocks_per_sm": "Float64",
        "occupancy": "Float64",  # per cent, as estimated by the recording tool
    },
    # what the host did, as far as device use needs it
    "host_events": {
        "rank": "Int64",
        "process": "Int64",
        "thread": "Int64",
        "kind": "String",  # step, phase, stage, module, operator, runtime, loader, annotation
        "name": "String",
        "start_ns": "Int64",
        "wall_ns": "Int64",
        "correlation": "Int64",
        "sequence": "Int64",
        "stack": "String",  # innermost line of user code, where the file has stacks
    },
    # counters of single kernels, as Nsight Compute measures them
    "kernel_metrics": {
        "process": "Int64",
        "device": "Int64",
        "kernel": "Int64",  # its number in the file, over all processes
        "name": "String",
        "metric": "String",
        "unit": "String",
        "value": "Float64",  # null: not measured for this kernel
    },
    # collectives between ranks: one row per bucket of gradients, exchange of buffers, and call of a program
    "communication": {
        "rank": "Int64",
        "step": "Int64",  # in which it was waited for
        "kind": "String",  # gradients, buffers; of a program's own: all_reduce, barrier, send, ...
        "bucket": "Int64",  # of a program's own: the how-manieth of its group
        "bytes": "Int64",
        "start_ns": "Int64",  # on rank 0's clock, as in the other tables of ranks
        "wall_ns": "Int64",
        "phase": "String",  # in which the program waited for a collective of its own; else null
        "group": "String",  # whose members meet in it; "0:1>2": from rank 1 of group 0 to rank 2
        "blocked_after_ns": "Int64",  # from start_ns until the program could do nothing but wait
        "blocked_ns": "Int64",
    },
    # accuracy at the end of an epoch; per class where `category` is set
    "accuracy": {
        "epoch": "Int64",
        "step": "Int64",
        "kind": "String",  # coco_box, coco_mask, coco_keypoints, voc07, voc10
        "figure": "String",  # AP, AP50, AP75, AP_small, ..., AR_100
        "category": "String",
        "value": "Float64",  # null: undefined, there was no ground truth
    },
}

# the same of every rank; `steps`, `content` and `timeline` are rank 0's
_OF_RANKS = ("step", "images", "boxes", "pixels", "network_pixels", "padded_pixels", "proposals")
TABLES["rank_steps"] = {"rank": "Int64", **TABLES["steps"]}
TABLES["rank_content"] = {"rank": "Int64", **{name: TABLES["content"][name] for name in _OF_RANKS}}
TABLES["rank_timeline"] = {"rank": "Int64", **TABLES["timeline"]}

# columns without which a row means nothing: a file where one is missing or has gaps is damaged
NEVER_NULL: dict[str, tuple[str, ...]] = {
    "steps": ("step", "mode", "phase", "start_ns", "wall_ns"),
    "content": ("step",),
    "images": ("step", "position", "name"),
    "losses": ("step", "name", "value"),
    "spans": ("step", "kind", "path", "direction", "calls", "total_ns", "self_ns"),
    "device_steps": ("step", "phase", "start_ns", "wall_ns", "idle_ns"),
    "device_spans": ("step", "kind", "path", "direction", "calls", "wall_ns", "idle_ns"),
    "nodes": ("kind", "path"),
    "ops": ("name", "direction", "count", "total_ns", "self_ns"),
    "costs": ("kind", "path", "direction", "flops", "self_flops", "bytes", "self_bytes"),
    "loader": ("step", "worker", "pid", "region", "start_ns", "wall_ns"),
    "transforms": ("step", "worker", "name", "kind", "where", "images"),
    "census": ("step", "phase", "kind", "what", "file", "line", "count", "in_call", "host_ns"),
    "telemetry": ("time_ns", "source", "metric", "value", "unit"),
    "timeline": ("step", "track", "name", "start_ns", "wall_ns"),
    "memory": ("block", "device", "bytes", "category"),
    "memory_levels": ("time_ns", "device", "level", "bytes"),
    "memory_changes": ("device", "category", "delta_bytes"),
    "device_events": ("rank", "kind", "name", "start_ns", "wall_ns"),
    "host_events": ("rank", "kind", "name", "start_ns", "wall_ns"),
    "kernel_metrics": ("kernel", "metric"),
    "communication": ("rank", "step", "kind", "start_ns", "wall_ns"),
    "accuracy": ("epoch", "step", "kind", "figure"),
}
for _name in ("steps", "content", "timeline"):
    NEVER_NULL[f"rank_{_name}"] = ("rank", *NEVER_NULL[_name])
