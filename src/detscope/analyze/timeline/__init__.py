"""Single steps to look into: what ran when, on the host, the device and in the loader's workers."""
