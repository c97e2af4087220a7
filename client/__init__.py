"""Producer, consumer and admin: asyncio first, with a blocking facade."""
