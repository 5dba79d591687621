"""Tenants: who they are, what they may have and do, what they used, and what is recorded about it."""
