"""Files that other tools recorded become runs with the same tables."""
