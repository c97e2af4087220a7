"""The live page of a cluster: a snapshot of it, one stream of changes, pages and their static files."""
