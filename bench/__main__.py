"""`make bench`: every benchmark, or those named on the command line."""

from __future__ import annotations

import sys
import warnings

from bench import (
    census,
    comparing,
    evaluation,
    families,
    importing,
    inference_cost,
    killed_ranks,
    known_defects,
    loading,
    memory,
    mutated,
    page,
    predict,
    predict_cpu,
    predict_detectors,
    predict_latency,
    ranks,
    run_script,
    saved,
    startup,
    straggler,
    sweep,
    timeline,
    training_cost,
    training_real,
    trying,
)

BENCHMARKS = {
    "startup": startup.main,
    "training": training_cost.main,
    "training_real": training_real.main,
    "inference": inference_cost.main,
    "run_script": run_script.main,
    "memory": memory.main,
    "census": census.main,
    "mutated": mutated.main,
    "evaluation": evaluation.main,
    "loading": loading.main,
    "ranks": ranks.main,
    "importing": importing.main,
    "predict": predict.main,
    "predict_cpu": predict_cpu.main,
    "predict_latency": predict_latency.main,
    "predict_detectors": predict_detectors.main,
    "sweep": sweep.main,
    "comparing": comparing.main,
    "page": page.main,
    "timeline": timeline.main,
}
# by name alone: these try something many times instead of timing it
ON_REQUEST = {
    "families": families.main,
    "killed_ranks": killed_ranks.main,
    "known_defects": known_defects.main,
    "saved": saved.main,
    "straggler": straggler.main,
    "trying": trying.main,
}


def main() -> None:
    """Run benchmarks one after the other; nothing else should run meanwhile."""
    warnings.simplefilter("ignore")
    names = [word for word in sys.argv[1:] if not word.startswith("--")]  # options are the benchmarks' own
    known = BENCHMARKS | ON_REQUEST
    for name in names or list(BENCHMARKS):
        if name not in known:
            sys.exit(f"no benchmark named {name!r}; there are: {', '.join(known)}")
        known[name]()


main()
