"""Faults by a script, under load, with the history of the records and its judge."""
