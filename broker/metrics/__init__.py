"""What a broker tells Prometheus. Imported where metrics are served alone, for the library takes memory."""
