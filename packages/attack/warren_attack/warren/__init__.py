"""Attacks on an installation of Warren: on a sandbox of it, looked at from the host and from a neighbour (`suite`), and
on a server by its API (`api`)."""
