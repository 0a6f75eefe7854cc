"""Verbs that measure: train, infer, eval, run, tune, and Nsight around them."""
