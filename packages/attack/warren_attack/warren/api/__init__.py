"""Attacks on a server of Warren by its API."""
