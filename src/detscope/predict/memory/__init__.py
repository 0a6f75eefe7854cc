"""Memory of a step by simulation: tensor lifetimes replayed through a model of the allocator."""
