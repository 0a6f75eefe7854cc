"""What is kept: the run folder, its tables and their schema."""
