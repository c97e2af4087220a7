"""The settings of a broker and of topics: table, sources, layers, changes while running."""
