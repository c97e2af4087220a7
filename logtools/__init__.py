"""Reads the logs of a broker that is stopped, and reports what is in them. Only the command imports it."""
