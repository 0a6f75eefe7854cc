"""Sections about lines of code: what costs time there, and what was counted."""
