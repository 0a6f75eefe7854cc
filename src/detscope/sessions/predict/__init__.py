"""`detscope predict`: a network or a run before it runs."""
