"""`barnabas demo`: the main job on real data, with a broker killed in the middle."""
