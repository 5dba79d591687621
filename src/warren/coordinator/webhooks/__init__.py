"""Webhooks: what happened is posted to addresses that callers name."""
