"""Whole pages: of a run, of a comparison, of a sweep."""
