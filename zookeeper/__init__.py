"""The door to ZooKeeper: session, paths, znodes, store, registration and settings."""
