"""Many runs: a plan of trials, each in a process of its own, kept in one store, on one machine or many."""
