"""The audit record: who did what, kept in files, in Redis or in memory, without the secrets."""
