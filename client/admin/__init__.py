"""The admin client: topics, settings, groups."""
