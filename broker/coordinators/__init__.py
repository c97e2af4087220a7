"""Groups and their offsets: the rules, and what keeps them on this broker."""
