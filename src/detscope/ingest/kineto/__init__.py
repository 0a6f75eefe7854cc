"""Kineto / Chrome traces: what torch.profiler and detscope write, old and new, whole or damaged."""
