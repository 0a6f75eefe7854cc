"""Which weights a model gets, where they come from, and reading them safely."""
