"""Barnabas: a replicated commit log with Kafka's rules, in Python.

The public API is small on purpose; everything else is reached through its package, for example
``from barnabas.client import Producer``.
"""

__version__ = "0.4.0"
