"""The names of E2B's wire: ids of sandboxes, ports of its services, and the one form that its requests have inside.

The server (warren.http.e2b.addresses) recognises such a request, however it is addressed, and gives it an inner path:
`/e2b/api/…` is the control plane, `/e2b/envd/{session_id}/…` the service for commands and files of one sandbox, and
`/e2b/code/{session_id}/…` its code interpreter. Nobody outside can send an inner path.
"""

import re
from enum import StrEnum
from typing import Final, NamedTuple

from warren.model.errors import SessionNotFound
from warren.model.preview import SESSION_PREFIX

ENVD_PORT: Final = 49983
CODE_PORT: Final = 49999
ENVD_VERSION: Final = "0.6.13"
PREFIX: Final = "/e2b"
DOMAIN_HEADER: Final = b"e2b-sandbox-domain"
"""The server sets it on requests to the control plane: below which domain this client finds ports of sandboxes."""
UPLOADS: Final = "/templates/uploads/"
"""What the addresses begin with to which clients upload files; the hash of the files follows, and a signed token."""
VOLUME_CONTENTS: Final = "/volumecontent/"
"""What the addresses begin with at which clients read and write what is in a volume; its id follows."""
NETWORK_IF_POSSIBLE: Final = "network_if_possible"
"""Among what placement knows of a new sandbox: it gets its environment's network, or none where there are none."""
ACCESS_HEADER: Final = b"x-access-token"
TRAFFIC_HEADER: Final = b"e2b-traffic-access-token"
TOKEN_PREFIXES: Final = (b"wet_", b"wtt_")
"""Tokens of sandboxes begin with these."""
_SANDBOX_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_INNER: Final = re.compile(r"/e2b/(envd|code)/(ses_[0-9a-f]{32})(/.*)", re.ASCII | re.DOTALL)
_OF_SANDBOX: Final = re.compile(r"/e2b/api(?:/v2)?/sandboxes/([0-9a-f]{32})(?:/.*)?", re.ASCII | re.DOTALL)


class Plane(StrEnum):
    API = "api"
    ENVD = "envd"
    CODE = "code"


class InnerPath(NamedTuple):
    """`path` is the path that the E2B client asked for."""

    plane: Plane
    session_id: str
    path: str


def sandbox_id_of(session_id: str) -> str:
    return session_id.removeprefix(SESSION_PREFIX)


def sandbox_env(session_id: str, template: str) -> dict[str, str]:
    """Returns the variables that tell programs that they run in a sandbox, and in which one."""
    return {"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": sandbox_id_of(session_id), "E2B_TEMPLATE_ID": template}


def session_id_of(sandbox_id: str) -> str:
    """Returns the session of a sandbox. Raises SessionNotFound if the text is not an id of a sandbox."""
    if not _SANDBOX_ID.fullmatch(sandbox_id):
        raise SessionNotFound(f"there is no sandbox {sandbox_id[:80]!r}")
    return SESSION_PREFIX + sandbox_id


def read_inner_path(path: str) -> InnerPath | None:
    match = _INNER.fullmatch(path)
    if match is not None:
        return InnerPath(Plane(match[1]), match[2], match[3])
    api = f"{PREFIX}/{Plane.API}"
    return InnerPath(Plane.API, "", path.removeprefix(api)) if path.startswith(f"{api}/") else None


def named_session(path: str) -> str:
    """Returns the id of the session that an inner path names, or ""."""
    inner = _INNER.fullmatch(path)
    if inner is not None:
        return inner[2]
    match = _OF_SANDBOX.fullmatch(path)
    return SESSION_PREFIX + match[1] if match else ""
