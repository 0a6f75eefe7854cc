"""On what is measured: data sets, safe fetching, loading. `registry.open_dataset` is the door."""
