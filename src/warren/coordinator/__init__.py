"""Sessions: who has which sandbox, for how long, and the HTTP API to them."""
