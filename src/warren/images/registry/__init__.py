"""Pulls images from registries."""
