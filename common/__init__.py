"""Parts that brokers, clients and commands share: retries, settings, threads, and the one RPC channel."""
