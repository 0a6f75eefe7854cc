"""`detscope train`: one training, profiled, evaluated, kept and resumed."""
