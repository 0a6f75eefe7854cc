"""Two runs side by side: what changed, by how much, and whether that can be told from noise."""
