"""A step of a network, traced operator by operator; needs torch."""
