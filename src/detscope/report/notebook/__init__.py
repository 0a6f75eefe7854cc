"""A run in a notebook: what it has as frames, its figures as types, its first screen as a small picture."""
