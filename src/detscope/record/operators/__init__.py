"""Operators of a window of steps, by torch.profiler, and whose they are."""
