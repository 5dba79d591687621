"""Logs of sessions: what their commands, cells and terminals did."""
