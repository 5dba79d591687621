"""What only tests and examples use: the fake provider, a clock that is turned by hand, an audit record in memory."""
