"""Bounded answers about recorded runs, for programs that ask: an MCP server, read-only."""
