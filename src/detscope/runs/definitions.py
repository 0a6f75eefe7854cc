"""What the numbers mean; stored in every run."""

from __future__ import annotations

DEFINITIONS = {
    "step": "wall time from asking the loader for a batch to asking for the next; the recorder's own work"
    " between steps is not part of any step",
    "p50, ci95": "median over the recorded steps (warm-up apart, outliers included), whose phases are"
    " known, and its distribution-free 95 % interval by order statistics; which steps run bare is drawn at"
    " random, so that the recorded ones stand for all",
    "mean, images_per_s": "over all measured steps, recorded and bare: their time over their number, and"
    " their images over their time",
    "p95, p99": "over all measured steps, recorded and bare; printed only when one sample beyond the"
    " percentile has been seen with 99 % certainty (90 and 459 samples)",
    "phases_ms": "share of each phase in the time of the typical steps (measured, outliers apart) times"
    " the median step, so that the phases add up to it",
    "forward": "calls of models and of loss modules, and the time from the end of the model's call to the"
    " begin of backward, if autograd nodes were made in it: a loss that is no module, the stage `loss`",
    "other": "time of the step in none of the named phases: Python between them, moving averages,"
    " metrics, logging",
    "parts": "of the phases optimizer and other, on the host's clock: measured (heard where they begin and"
    " end, without parts inside of them), sampled (share of the looks of a timer at what was not measured),"
    " or the rest; they add up to their phase",
    "module forward_ms": "wall time between a module's begin and end, scaled as the forward phase; self:"
    " without the modules below",
    "module backward_ms": "time the autograd engine spent from the first node a module made until the next"
    " module's, scaled as the backward phase; AccumulateGrad follows the node that produced the gradient",
    "backward_attributed": "share of backward time that belongs to modules; at level ops: time inside"
    " autograd nodes whose sequence number a module created, over the time in all autograd nodes",
    "overhead_ratio": "time of a step of this run, the recorder's work between steps included, over that of"
    " a step without a recorder: bare steps, in which nothing of it is awake. Recorded over bare (data wait"
    " left out) is the median over bare steps, each against its recorded neighbours; interval by bootstrap."
    " What is taken while loader workers lag behind costs nothing. Needs five bare steps",
    "capacity_images_per_s": "images per second the loader's workers make when they never have to wait",
    "demand_images_per_s": "images per second the loop would take if it never waited for data",
    "receive_ms": "part of the waiting for data that came after a worker had made the batch: sending it,"
    " fetching its shared memory, unpacking; ready_share: of the batches, made before they were asked for",
    "latency_ms": "inference: wall time from asking for an image (or batch) to its detections, decoding"
    " included",
    "decode": "inference: reading the file, decoding, conversion to a float tensor, in the loop itself; every"
    " file was read once before, so it comes from the system's file cache",
    "stages of an inference": "ms: share of the stage in the time of the typical images times the median"
    " latency, so that decode, the detector's stages and other add up to it; p50, ci95, p95: of the stage"
    " itself over the measured images",
    "first_image_ms": "wall time of the very first pass of the run, which the warm-up holds",
    "cost_against_content": "least-squares line of a stage's time over what was in the image; r2: share of"
    " the variation that it explains; ci95: of the slope",
    "memory of the pass": "bytes that torch allocated and freed during a forward pass, above what was there"
    " at its beginning; decoding is not part of it",
    "census": "steps of their own, which no time is taken from, in which every operator is looked at: how"
    " often the host would wait for the device (read: a value; size: a size that the device alone knows;"
    " copy: to the host), feed it, index it by a tensor of the host, and launch operators on it; by line",
    "findings": "what costs time and where: lines by their cost on a device, advice on the whole run, lines"
    " below 0.02 ms on a device and 0.5 % of the step here, advice on memory. cost_ms: per step here, lowest"
    " and highest of the census steps; of advice what it could save at most",
    "on_device": "an estimate of what a finding would cost per step on a device if nothing hid it: its waits,"
    " launches and copied bytes times what `assumes` of detscope why --json says; no device was measured",
    "padding_share": "share of the pixels in the network's input batch that are padding",
}

# of runs whose device has a clock of its own; where these differ from the above, these hold
DEVICE_DEFINITIONS = {
    "clock": "device: phases, stages and modules are in the device's own time; host_ms is the host's time of"
    " the same. The step, its speed and its latency are wall time, whatever the clock",
    "phases on the device": "from mark to mark in the device's queue, or kernels and copies by the phase that"
    " launched them; they add up to the device's median step. data: the device stood idle while the host"
    " waited for a batch, and nothing else",
    "idle_ms": "of a phase, stage or module: the device had nothing to do. By kernels exact: it belongs to"
    " whose work ended it. By marks at most: from when the device came to a mark until the host had queued"
    " the next",
    "module times by marks": "modules are marked in turn: share of the phase in the steps of their turn,"
    " times the phase; one that takes less than its mark is named, and its time is in its caller's own",
    "host_ahead_ms": "how much later than the host the device came to the end of a step",
    "bound": "device-bound: the device works 80 % of its step or more; else the largest loss of 15 % or more:"
    " input-bound (the device waits for data), host-bound (for work of the host), communication-bound"
    " (exchange that nothing hides); mixed: none is so large, or it cannot be proved",
}
