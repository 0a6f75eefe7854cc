"""One module per measuring verb: builds the parts, lets them run, closes the run."""
