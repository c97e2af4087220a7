"""Security that brokers and clients share: principals, ACLs as data, SASL mechanisms, TLS contexts."""
