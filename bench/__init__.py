"""What is measured: side by side with peers in one run, as ratios."""
