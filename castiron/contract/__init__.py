"""What a model promises: schema, service level, limits, release rule; checked, compared, exported."""
