"""Memory by blocks: who allocated what, what it was for, what grows, what ran out."""
