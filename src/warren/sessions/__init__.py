"""Sessions: who has which sandbox, for how long, and what can be done with it."""
