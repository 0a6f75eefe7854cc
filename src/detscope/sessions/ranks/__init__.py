"""Several processes that train together: how they are started, meet and become one run."""
