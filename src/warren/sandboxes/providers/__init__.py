"""Providers: the ways to make sandboxes (oci, docker, e2b)."""
