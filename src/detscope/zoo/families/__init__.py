"""One file per family of detectors; each fills in a `Family` as its `PART`."""
