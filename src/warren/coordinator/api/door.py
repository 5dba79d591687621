"""Who may come in: with an API key set, only who shows it.

The key travels as `Authorization: Bearer KEY` or `X-API-Key: KEY`. What only says that the server is alive
is open to all.
"""

import hmac
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from warren.model.errors import Unauthorized
from warren.model.session import DEFAULT_TENANT

_OPEN: Final = frozenset({"/health", "/ready", "/version"})


class Door:
    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            if self._key and scope["path"] not in _OPEN and not self._shown(scope):
                raise Unauthorized(
                    "this server wants an API key", remedy="send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`"
                )
            scope["tenant"] = DEFAULT_TENANT
        await self._app(scope, receive, send)

    def _shown(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name == b"x-api-key" and hmac.compare_digest(value, self._key):
                return True
            if name == b"authorization":
                scheme, _, key = value.partition(b" ")
                if scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key):
                    return True
        return False
