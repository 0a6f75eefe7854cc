"""What would make a step shorter."""
