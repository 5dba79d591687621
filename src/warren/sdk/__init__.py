"""What runs in the user's program: clients of a server, or of this machine itself.

`aio` is written by hand; `blocking` is made from it by scripts/generate_sync.py, all but its transport.
"""
