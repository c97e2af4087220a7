"""The server: network, request handlers, replicas and logs."""
