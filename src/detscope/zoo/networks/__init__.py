"""Networks to sweep and to predict: classifiers, detectors and folders of pruned ones, by one function."""

from detscope.zoo.networks.network import Base, Batch, Network
from detscope.zoo.networks.load import load_network

__all__ = ["Base", "Batch", "Network", "load_network"]
