"""Who a peer is, what it may do and how much: authentication, authorization and quotas of the broker."""
