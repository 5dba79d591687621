"""Warren for agent frameworks: each of these is thin, and an extra of its own."""
