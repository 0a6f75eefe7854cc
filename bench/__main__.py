"""`make bench`: every benchmark, or those named on the command line."""

from __future__ import annotations

import sys
import warnings

from bench import inference_cost, startup, training_cost

BENCHMARKS = {
    "startup": startup.main,
    "training": training_cost.main,
    "inference": inference_cost.main,
}


def main() -> None:
    """Run benchmarks one after the other; nothing else should run meanwhile."""
    warnings.simplefilter("ignore")
    for name in sys.argv[1:] or list(BENCHMARKS):
        if name not in BENCHMARKS:
            sys.exit(f"no benchmark named {name!r}; there are: {', '.join(BENCHMARKS)}")
        BENCHMARKS[name]()


main()
