"""Sockets, network threads and the request queue. Knows no logs."""
