"""Parts for tests and examples: the fake provider, a clock that tests advance, an audit record in memory."""
