"""Other systems to measure Barnabas beside, each started from here as anyone could start it."""
