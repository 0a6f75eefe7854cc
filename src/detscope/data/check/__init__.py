"""`detscope data check`: what is wrong with a data set and what it is like."""
