"""Writing to a cluster: at least once, and exactly once."""
