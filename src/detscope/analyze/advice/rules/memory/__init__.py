"""What would lower the peak of memory: each rule replays the run's own step."""
