"""The HTTP API: thin translations of the use cases in sessions.py."""
