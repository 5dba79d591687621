"""What E2B's clients can ask for and this server does not have: each is refused by name, with status 501."""

from typing import Final

from starlette.responses import Response

from warren.http.e2b.control.sandboxes import running_session
from warren.http.e2b.errors import E2bError
from warren.http.e2b.routes import E2bCall, Route
from warren.model.access import Scope

_LOGS: Final = "logs of sandboxes are not supported: what was done is in the server's audit record"
_PAUSE: Final = "pausing sandboxes is not supported"
_FORK: Final = "forking sandboxes is not supported"
_SNAPSHOTS: Final = "snapshots are not supported"
_VOLUMES: Final = "volumes are not supported"
_SECRETS: Final = "secrets are not supported over this API: `warren secrets` sets those of sandboxes"
_EVENTS: Final = "events of sandboxes are not supported over this API: `warren webhooks` tells of sessions"
_ONE: Final = "/sandboxes/{sandbox_id}"
_CONTENT: Final = "/volumecontent/{volume_id}"
_TABLE: Final = (
    ("POST", f"{_ONE}/pause", _PAUSE),
    ("POST", f"{_ONE}/fork", _FORK),
    ("POST", f"{_ONE}/snapshots", _SNAPSHOTS),
    ("GET", f"{_ONE}/logs", _LOGS),
    ("GET", f"/v2{_ONE}/logs", _LOGS),
    ("GET", "/events/sandboxes", _EVENTS),
    ("GET", "/events/sandboxes/{of_sandbox}", _EVENTS),
    *((method, "/events/webhooks", _EVENTS) for method in ("GET", "POST")),
    *((method, "/events/webhooks/{webhook_id}", _EVENTS) for method in ("GET", "PATCH", "DELETE")),
    ("GET", "/snapshots", _SNAPSHOTS),
    ("POST", "/volumes", _VOLUMES),
    ("GET", "/volumes", _VOLUMES),
    ("GET", "/volumes/{volume_id}", _VOLUMES),
    ("DELETE", "/volumes/{volume_id}", _VOLUMES),
    *((method, f"{_CONTENT}/path", _VOLUMES) for method in ("GET", "PATCH", "DELETE")),
    *((method, f"{_CONTENT}/dir", _VOLUMES) for method in ("GET", "POST")),
    *((method, f"{_CONTENT}/file", _VOLUMES) for method in ("GET", "PUT")),
    ("POST", "/secrets", _SECRETS),
    ("GET", "/secrets", _SECRETS),
    ("GET", "/secrets/{secret_id}", _SECRETS),
    ("POST", "/secrets/{secret_id}", _SECRETS),
    ("DELETE", "/secrets/{secret_id}", _SECRETS),
)


def _refuse(method: str, path: str, message: str) -> Route:
    async def run(call: E2bCall) -> Response:
        if "sandbox_id" in call.params:
            await running_session(call)
        raise E2bError(501, message)

    return Route(method, path, "e2b_unsupported", Scope.READ, run, streams=method == "PUT")


ROUTES: tuple[Route, ...] = tuple(_refuse(*row) for row in _TABLE)
