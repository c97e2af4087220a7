"""The broker's knowledge of its cluster: metadata, features and producer ids."""
