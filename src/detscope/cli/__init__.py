"""One thin module per verb: parses, calls, prints; no logic."""
