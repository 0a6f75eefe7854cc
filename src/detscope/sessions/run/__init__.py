"""`detscope run` and `detscope.watch()`: scripts as they are."""
