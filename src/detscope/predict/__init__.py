"""What an unseen network will cost: layer graphs, memory by simulation, latency models, intervals, scores."""
