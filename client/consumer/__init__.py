"""The consumer: fetching, positions, group membership, assignors."""
