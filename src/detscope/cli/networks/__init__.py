"""Verbs about networks: listed, pruned, swept, fitted and predicted."""
