"""Methods that are fitted on samples, and the choice among them."""
