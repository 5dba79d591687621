"""Starts and stops sandboxes of any provider that the server has, or this machine in local mode."""

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from orchestrator.e2b_manager import E2BManager
from warren.sdk.blocking.session_holder import create_session
from warren.sdk.protocol import new_key

# The cloud's part is the server's: the environment says what makes its sandboxes. The session shows what it was.
_PROVIDERS: Final = {"e2b": ""}


class UnifiedSandboxManager(E2BManager):
    """`runtime_path` is not used: Warren keeps sandboxes and images in its own state directory (WARREN_STATE_DIR)."""

    def __init__(
        self,
        runtime_path: str | os.PathLike[str] = "./sandbox_runtime",
        e2b_api_key: str | None = None,
        storage_path: str | os.PathLike[str] = "./storage",
    ) -> None:
        super().__init__(e2b_api_key, storage_path)

    def start_sandbox(
        self,
        session_id: str = "",
        environment: str = "",
        provider: str = "e2b",
        agent_config: str | Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Starts a sandbox, and gives the session that has it: `session_id`, `sandbox_id`, `provider`, `url` and more.

        `session_id`: a name of your own for it. As long as the session of that name lives it is given again, and in
        local mode it stays for the next program. With "e2b" the environment's own provider makes the sandbox. With
        another one, `environment` may also be an image.
        """
        options: dict[str, Any] = {
            "thread_id": session_id,
            "provider": _PROVIDERS.get(provider, provider),
            "agent_config": agent_config if isinstance(agent_config, str) else dict(agent_config or {}),
        }
        options["image" if self._is_image(environment, provider) else "environment"] = environment
        made = create_session(self._backend, new_key(), {name: value for name, value in options.items() if value})
        return self._shown(made)

    def _is_image(self, environment: str, provider: str) -> bool:
        if not environment or provider in _PROVIDERS:
            return False
        known = self._backend.call("list_environments")["environments"]
        return environment not in {each["name"] for each in known}

    def get_sandbox(self, session_id: str) -> dict[str, Any]:
        """The session as it is, with the isolation that is in force."""
        return self._shown(self._backend.call("get_session", self.find(session_id)))

    def stop_sandbox(self, session_id: str, sandbox_id: str = "") -> dict[str, Any]:
        """Ends the session and its sandbox; with `sandbox_id` only if it is the session's sandbox, else Conflict."""
        found = self.find(session_id)
        return self._shown(self._backend.call("delete_session", found, sandbox_id=sandbox_id or None))

    def _shown(self, session: Mapping[str, Any]) -> dict[str, Any]:
        """As it comes over HTTP, in local mode too; there is no URL then."""
        values: dict[str, Any] = json.loads(json.dumps(session))
        return {**values, "url": values["url"] if self.mode == "remote" else None}
