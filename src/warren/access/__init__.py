"""Who sends a request: keys, tokens, tickets, page sessions, and the tenants they belong to."""
