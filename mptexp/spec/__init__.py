"""What is asked: the typed parameters of a run, the grid of a sweep, policies, number formats."""
