"""How a cluster is run: local processes, the bundled ZooKeeper, the compose file."""
