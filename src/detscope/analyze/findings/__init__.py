"""Findings: what costs time at a line of code, with evidence, what it costs on a device, and a change."""
