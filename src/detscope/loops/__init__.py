"""The code under measurement; it does not know who listens."""
