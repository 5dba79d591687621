"""One module per group of routes. A route translates a request into a call on the sessions and its result back."""
