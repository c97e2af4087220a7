"""Who leads, who follows, what is committed."""
