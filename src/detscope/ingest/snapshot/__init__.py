"""Snapshots of the caching allocator of CUDA."""
