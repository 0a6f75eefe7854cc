"""Listening to a model from outside: calls of modules, methods and functions, phases."""
