"""From a data set to batches: views, order, packing, workers."""
