"""Figures of many trials."""
