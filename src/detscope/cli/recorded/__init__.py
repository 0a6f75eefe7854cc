"""Verbs about runs that were recorded, here or elsewhere."""
