"""Coordinators of groups and of transactions, and the parts that both share: their logs, loading, links."""
