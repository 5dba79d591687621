"""A session from its beginning to its end: `start`, work with `sandbox_mgr`, `stop`."""

import os
from collections.abc import Mapping
from typing import Any, Self

from orchestrator.session_manager import SessionManager
from orchestrator.state_manager import StateManager
from orchestrator.unified_manager import UnifiedSandboxManager


class Lifecycle:
    """`sandbox_mgr` works on sandboxes, `session_mgr` on sessions, `state_mgr` on the files in `storage_path`.

    With WARREN_URL or WARREN_API_KEY, a key of Warren's as `e2b_api_key`, or a server that runs here, sandboxes are
    those of the server; without, those of this machine, which needs root, and of E2B with `e2b_api_key`. `runtime_path`
    is not used. Sessions that are not stopped end by their time-outs, and in local mode with the program.
    """

    def __init__(
        self,
        storage_path: str | os.PathLike[str] = "./storage",
        runtime_path: str | os.PathLike[str] = "./sandbox_runtime",
        e2b_api_key: str | None = None,
    ) -> None:
        self.state_mgr = StateManager(storage_path)
        self.sandbox_mgr = UnifiedSandboxManager(runtime_path, e2b_api_key, storage_path)
        self.session_mgr = SessionManager(self.state_mgr, self.sandbox_mgr)

    def __repr__(self) -> str:
        return f"<Lifecycle {self.sandbox_mgr!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(
        self, agent_config: str | Mapping[str, Any] | None = None, environment: str = "", provider: str = ""
    ) -> dict[str, Any]:
        """A session with a sandbox that runs: `session_id`, `sandbox_id`, `provider`, `url` and more.

        `agent_config` is the name of an agent of the registry, or an agent as the registry has them. `provider`:
        without one the environment says what makes the sandbox; see `UnifiedSandboxManager.start_sandbox`.
        """
        return self.session_mgr.create_session(agent_config, environment, provider)

    def status(self, session_id: str) -> dict[str, Any]:
        return self.session_mgr.get_session(session_id)

    def stop(self, session_id: str, sandbox_id: str = "") -> dict[str, Any]:
        """Ends the session; its sandbox is gone when this returns. With another sandbox's id it raises Conflict."""
        return self.session_mgr.destroy_session(session_id, sandbox_id)

    def close(self) -> None:
        """Closes connections; in local mode it ends the sessions that were not stopped."""
        self.sandbox_mgr.close()
