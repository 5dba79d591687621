"""Forwards a client's request or WebSocket to another server: a worker, or a server inside a sandbox."""
