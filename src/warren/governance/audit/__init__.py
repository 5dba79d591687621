"""The audit record: who did what, kept in files or in Redis, without secrets."""
