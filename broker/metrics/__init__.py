"""A broker's metrics for Prometheus. Imported only if metrics are served, because the library takes
memory."""
