"""Compaction: keeps the newest record of each key. Above `log`; knows no replicas, sockets or ZooKeeper."""
