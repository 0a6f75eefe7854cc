"""One file per data set or layout of a folder: how it is recognised, fetched and read."""
