"""Warren as a sandbox of Deep Agents Code: `dcode --sandbox warren`.

The program finds it by an entry point. Each run gets a session of its own, which ends with it; `--sandbox-id` names one
that exists, and goes on. `[sandboxes.providers.warren.params]` of the program's configuration, or keywords of
`get_or_create`, are the options of SandboxClient, and `server_url` and `timeout`.
"""

import asyncio
from typing import Any, Final

from warren.integrations.extras import missing_package

try:
    from deepagents_code.integrations.sandbox_provider import (
        SandboxError,
        SandboxNotFoundError,
        SandboxProvider,
        SandboxProviderMetadata,
    )
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "deepagents-code") from None

from warren.integrations.deepagents import WarrenSandbox
from warren.integrations.framework_errors import GONE
from warren.model.errors import WarrenError
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.protocol import COMMAND_TIMEOUT_S

_MARK: Final = "deepagents_code"
"""The metadata by which sessions of this program are found."""


class WarrenProvider(SandboxProvider):
    """Makes sessions, and ends those it has made or is told to."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[SandboxClient, WarrenSandbox]] = {}

    @property
    def metadata(self) -> SandboxProviderMetadata:
        return SandboxProviderMetadata("warren", working_dir="/workspace", supports_snapshot_name=True)

    def get_or_create(
        self,
        *,
        sandbox_id: str | None = None,
        server_url: str = "",
        timeout: float = COMMAND_TIMEOUT_S,
        **options: Any,
    ) -> WarrenSandbox:
        options["metadata"] = {_MARK: "sandbox", **(options.get("metadata") or {})}
        client = SandboxClient(server_url, session_id=sandbox_id or "", **options)
        try:
            session = client.create_session()
            if session.state not in ("running", "paused"):
                raise SandboxNotFoundError(f"the session {sandbox_id} is {session.state}")
        except GONE as exc:
            client.close()
            raise SandboxNotFoundError(str(exc)) from exc
        except BaseException as exc:
            client.leave()
            if isinstance(exc, WarrenError):
                raise SandboxError(str(exc)) from exc
            raise
        backend = WarrenSandbox(client=client, timeout=timeout)
        self._open[session.session_id] = client, backend
        return backend

    def delete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        # Another client ends it: the backend keeps its id, and makes no other session when it is used again.
        client, backend = self._open.pop(sandbox_id, (None, None))
        server = client.options if client is not None else kwargs
        known = {name: server[name] for name in ("server_url", "api_key", "mode") if name in server}
        ending = SandboxClient.attach(sandbox_id, **known)
        try:
            ending.cleanup()
        except WarrenError as exc:
            raise SandboxError(str(exc)) from exc
        finally:
            ending.close()
            if client is not None and backend is not None:
                backend.close()
                client.close()

    async def aget_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> WarrenSandbox:
        making = asyncio.ensure_future(asyncio.to_thread(self.get_or_create, sandbox_id=sandbox_id, **kwargs))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:  # a thread cannot be cancelled: what it makes is ended
            backend = await making
            if sandbox_id is None:
                await self.adelete(sandbox_id=backend.id)
            raise
