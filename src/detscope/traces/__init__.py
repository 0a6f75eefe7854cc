"""Events of torch's profiler, read live or from a file, to the tables of a run: one path for both."""
