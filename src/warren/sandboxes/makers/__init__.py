"""Processes that make and end sandboxes for a server: the server's side, theirs, and what they say to each other."""
