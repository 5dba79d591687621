"""Sessions, sandboxes and their state under the names of the orchestrator, on top of Warren's client.

With WARREN_URL, WARREN_API_KEY or a key of Warren's these work on a server; without, on this machine in this process
(local mode). docs/e2b-guide.md describes them.
"""
