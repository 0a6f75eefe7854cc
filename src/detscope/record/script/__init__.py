"""Listening to a script that knows nothing of us: global hooks, step borders, roots, loaders."""
