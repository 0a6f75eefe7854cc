"""Networks as lists of layers, and latency summed up over measured layers."""
