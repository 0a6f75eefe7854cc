"""Typed settings: the schema, TOML files, `--set` overrides, and suggestions for what is misspelt."""
