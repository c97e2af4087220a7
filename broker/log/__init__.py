"""Segments, indexes, checkpoints and recovery. Knows no sockets and no ZooKeeper."""
