"""Rules that look at lines of code alone, by what the census counted there."""
