"""The Python client: it runs in the user's program and talks to a server, or makes sandboxes on this machine.

`aio` is written by hand; scripts/generate_sync.py makes `blocking` from it, except for its transport and platform.
"""
