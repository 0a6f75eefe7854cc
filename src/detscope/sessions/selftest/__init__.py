"""`detscope doctor --selftest`: known work, recorded by the product itself; what comes out is compared."""
