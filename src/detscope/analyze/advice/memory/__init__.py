"""Advice about memory."""
