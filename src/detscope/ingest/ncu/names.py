"""Names of metrics: those of the details page, and what the counters themselves are called."""

from __future__ import annotations

SM_THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"

# (name on the details page, unit without prefix or "" for any) -> metric
_BY_NAME = {
    ("Compute (SM) Throughput", ""): SM_THROUGHPUT,
    ("SM Throughput", ""): SM_THROUGHPUT,
    ("SM [%]", ""): SM_THROUGHPUT,
    ("Elapsed Cycles", ""): "gpc__cycles_elapsed.max",
    ("SM Active Cycles", ""): "sm__cycles_active.avg",
    ("SM Frequency", ""): "gpc__cycles_elapsed.avg.per_second",
    ("DRAM Frequency", ""): "dram__cycles_elapsed.avg.per_second",
    ("Duration", ""): "gpu__time_duration.sum",
    ("Memory Throughput", "%"): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("Memory [%]", ""): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("Memory Throughput", "byte/second"): "dram__bytes.sum.per_second",
    ("DRAM Throughput", "%"): "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ("L1/TEX Cache Throughput", ""): "l1tex__throughput.avg.pct_of_peak_sustained_active",
    ("L2 Cache Throughput", ""): "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    ("L1/TEX Hit Rate", ""): "l1tex__t_sector_hit_rate.pct",
    ("L2 Hit Rate", ""): "lts__t_sector_hit_rate.pct",
    ("Executed Ipc Active", ""): "sm__inst_executed.avg.per_cycle_active",
    ("Executed Ipc Elapsed", ""): "sm__inst_executed.avg.per_cycle_elapsed",
    ("Issued Ipc Active", ""): "sm__inst_issued.avg.per_cycle_active",
    ("Issue Slots Busy", ""): "sm__inst_issued.avg.pct_of_peak_sustained_active",
    ("Achieved Occupancy", ""): "sm__warps_active.avg.pct_of_peak_sustained_active",
    ("Theoretical Occupancy", ""): "sm__maximum_warps_per_active_cycle_pct",
    ("Achieved Active Warps Per SM", ""): "sm__warps_active.avg.per_cycle_active",
    ("Registers Per Thread", ""): "launch__registers_per_thread",
    ("Block Size", ""): "launch__block_size",
    ("Grid Size", ""): "launch__grid_size",
    ("Threads", ""): "launch__thread_count",
    ("Waves Per SM", ""): "launch__waves_per_multiprocessor",
}


def metric_name(name: str, unit: str) -> str:
    """The counter's own name where we know it, else the name as it is printed."""
    name = name.strip()
    return _BY_NAME.get((name, "")) or _BY_NAME.get((name, unit)) or name
