"""Saved disks: images of sandboxes' disks under names, and how they come about."""
