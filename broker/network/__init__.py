"""Sockets, network threads, the request queue and the purgatory. Knows no logs."""
