"""One module per API; the registry lists them all."""
