"""The brain of the cluster: ZooKeeper paths, elections, state machines, topic work."""
