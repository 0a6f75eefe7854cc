"""Structured pruning: which channels go, the cut network, and its folder."""
