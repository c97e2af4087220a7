"""Figures measured on this machine; each module is a benchmark of its own: ``python -m benchmarks.NAME``."""
