"""`detscope fit` and `detscope score`: device models from what was measured."""
