"""Verbs that measure: train, infer, eval, run, try, tune, and Nsight around them."""
