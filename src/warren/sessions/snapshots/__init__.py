"""Snapshots: the room of saved disks that callers have, start sessions from, fork, download and upload."""
