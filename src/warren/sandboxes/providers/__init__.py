"""Providers: the ways to make sandboxes (oci, docker)."""
