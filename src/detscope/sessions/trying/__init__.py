"""A run's own command with and without a change, in fresh processes by turns, until the interval decides."""
