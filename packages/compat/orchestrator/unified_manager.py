"""Starts and stops sandboxes of any provider that the server has, or this machine in local mode."""

import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from orchestrator.e2b_manager import NAME, E2BManager
from warren.model.errors import Conflict, InvalidRequest, SessionMismatch
from warren.sdk.blocking.session_holder import create_session
from warren.sdk.protocol import new_key

_E2B: Final = "e2b"
_OF: Final = "@@"  # between a name and its provider in a thread's id; one @ may be in a name
_NO_PROVIDER: Final = re.compile(r"^(this server has no|no worker has the) provider\b")
_OR_ELSE: Final = "or leave provider out: the environment says what makes its sandboxes"


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
        provider: str = "",
        agent_config: str | Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Starts a sandbox, and gives the session that has it: `session_id`, `sandbox_id`, `provider`, `url` and more.

        `session_id`: a name of your own for it, without "@@". As long as the session of that name and provider lives it
        is given again, and in local mode it stays for the next program; if it has another environment, image or limit
        than are named, that raises Conflict.
        Without a `provider` the environment's own makes the sandbox. With one, `environment` may also be an image.
        Raises InvalidRequest for a provider that is not there; "e2b" is there if the key of the server was given as
        E2B's, and then is what the environment says.
        """
        if _OF in session_id:
            raise InvalidRequest(f"the name {session_id[:80]!r} has {_OF!r} in it", remedy="give it another name")
        options: dict[str, Any] = {
            "thread_id": f"{session_id}{_OF}{provider}" if session_id and provider else session_id,
            "provider": provider,
            "agent_config": agent_config if isinstance(agent_config, str) else dict(agent_config or {}),
            "metadata": {NAME: session_id} if session_id else {},
        }
        options["image" if self._is_image(environment, provider) else "environment"] = environment
        try:
            return self._shown(self._create(options))
        except SessionMismatch as exc:
            differs = ", ".join(
                f"the {name} {each['has']!r}, not {each['asked']!r}" for name, each in exc.mismatch.items()
            )
            raise Conflict(
                f"the sandbox {session_id!r} has {differs}",
                remedy="stop it first (stop_sandbox), or give this one another name",
            ) from exc

    def _create(self, options: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return create_session(self._backend, new_key(), {name: value for name, value in options.items() if value})
        except InvalidRequest as exc:
            if options["provider"] != _E2B or not _NO_PROVIDER.match(exc.message):
                raise
            if not self._target.is_e2b:
                raise self._no_e2b(exc) from None
        return self._create({**options, "provider": ""})

    def _no_e2b(self, refused: InvalidRequest) -> InvalidRequest:
        if self.mode == "local":
            message = "E2B is asked for, and there is no key for it"
            return InvalidRequest(message, remedy=f"give e2b_api_key, or set E2B_API_KEY; {_OR_ELSE}")
        return InvalidRequest(refused.message, remedy=f"its operator adds it, see docs/e2b-provider.md; {_OR_ELSE}")

    def _is_image(self, environment: str, provider: str) -> bool:
        if not environment or not provider:
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
