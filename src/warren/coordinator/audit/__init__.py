"""The audit record: who did what, kept in files or in memory, without the secrets."""
