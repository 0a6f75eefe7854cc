"""Blocks that sections are put together from, where a section alone would be too long."""
