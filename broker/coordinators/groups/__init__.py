"""The group coordinator: members, rebalances and committed offsets."""
