"""Access to ZooKeeper: session, paths, znodes, store, controller election, registration and settings."""
