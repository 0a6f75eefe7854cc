"""Memory of a step: the account, its blocks over time, what would change it."""
