"""Work on a sandbox with the async client. scripts/generate_sync.py makes `blocking` of these files."""
