"""Networks to sweep and to predict: classifiers, detectors and folders of pruned ones, by one function."""

from detscope.zoo.networks.loading import load_network
from detscope.zoo.networks.network import Batch, Network, NetworkBase

__all__ = ["Batch", "Network", "NetworkBase", "load_network"]
