"""Parts that every layer of the broker uses: clocks, bounds, the purgatory, worker threads."""
