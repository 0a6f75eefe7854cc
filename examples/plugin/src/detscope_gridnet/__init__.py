"""GridNet: a made-up family of detectors, as an example of a package that adds one to detscope."""
