"""Work on a sandbox with the blocking client, made from `aio` by scripts/generate_sync.py."""
