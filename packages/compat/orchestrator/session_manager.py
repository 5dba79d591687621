"""Makes and ends sessions, and writes down what becomes of them."""

from collections.abc import Mapping
from typing import Any

from orchestrator.state_manager import StateManager
from orchestrator.unified_manager import UnifiedSandboxManager


class SessionManager:
    def __init__(self, state_mgr: StateManager, sandbox_mgr: UnifiedSandboxManager) -> None:
        self._state = state_mgr
        self._sandboxes = sandbox_mgr

    def create_session(
        self, agent_config: str | Mapping[str, Any] | None = None, environment: str = "", provider: str = ""
    ) -> dict[str, Any]:
        """A session with a sandbox that runs."""
        return self._saved(self._sandboxes.start_sandbox("", environment, provider, agent_config))

    def get_session(self, session_id: str) -> dict[str, Any]:
        """The session as it is now."""
        return self._saved(self._sandboxes.get_sandbox(session_id))

    def list_sessions(self) -> list[dict[str, Any]]:
        """The sessions of this storage as they were when they were looked at last, newest first."""
        found = (self._state.load(name) for name in self._state.names())
        return [each for each in found if each is not None]

    def destroy_session(self, session_id: str, sandbox_id: str = "") -> dict[str, Any]:
        """Ends it; with `sandbox_id` only if that is its sandbox, else Conflict."""
        return self._saved(self._sandboxes.stop_sandbox(session_id, sandbox_id))

    def _saved(self, session: dict[str, Any]) -> dict[str, Any]:
        self._state.save(session["session_id"], session)
        return session
