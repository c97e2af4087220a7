"""Running a cluster: local processes, the bundled ZooKeeper, the compose file."""
