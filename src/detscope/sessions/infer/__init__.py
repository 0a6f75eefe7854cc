"""`detscope infer`: images through a detector."""
