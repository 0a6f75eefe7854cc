"""What verbs tell that is no run: comparisons, sweeps, predictions, fits, tunings, lists of runs."""
