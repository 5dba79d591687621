"""Where sessions and records are kept: memory, SQLite, Redis, and a worker's mirror of its own rows."""
