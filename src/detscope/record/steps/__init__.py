"""What happens in a step: events, who owns the time between them, rows of the tables."""
