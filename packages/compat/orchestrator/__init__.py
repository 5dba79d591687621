"""Sessions, sandboxes and their state under the names of the orchestrator, on top of Warren's client.

With WARREN_URL, WARREN_API_KEY, a key of Warren's or a server that runs here these work on a server; without, on this
machine in this process (local mode). docs/e2b-guide.md describes them.
"""

try:
    import warren as _warren  # noqa: F401
except ModuleNotFoundError as exc:
    raise ImportError("orchestrator is Warren under other names: pip install warren-sandbox") from exc
