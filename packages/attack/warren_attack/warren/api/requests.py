"""For each operation of the table (model/api.py): a request that is right in every way but, perhaps, its session.

Its arguments are the examples that the API itself gives, unless an attack needs others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from warren.http.dispatch import HANDLERS
from warren.model.api import OPERATIONS, Operation, Reads, SessionIn
from warren_attack.warren.api.arena import MOUNTED_AT, VOLUME, Tenant

_TAR: Final = bytes(1024)  # the end of a tar: an archive of nothing
_BODIES: Final[Mapping[str, dict[str, Any]]] = {
    "change_session": {"metadata": {"attack": "yes"}},
    "set_network": {"allow": [], "internet": False},
    "change_port": {"host_header": "localhost"},
    "run_command": {"command": "echo reached"},
    "start_process": {"command": "sleep 1"},
    "create_context": {"language": "bash"},
    "run_code": {"code": "echo reached", "language": "bash"},
    "write_stdin": {"data": "x"},
    "send_signal": {"signal": "WINCH"},
    "resize_terminal": {"rows": 30, "columns": 90},
    "kill_process": {"grace_s": 0},
    "make_directory": {"path": "attack-directory"},  # that of the example is there: another request writes into it
    "move_file": {"source": "attack-file", "target": "attack-file-2"},
    "save_artifacts": {"paths": ["secret"]},
    "create_volume": {"name": VOLUME, "size_mb": 16},
    "copy_volume": {"name": f"{VOLUME}-2"},
    "attach_volume": {"name": VOLUME, "path": MOUNTED_AT},
    "flat_execute": {"command": "echo reached"},
    "e2b_execute": {"code": "1", "language": "bash"},
    "e2b_write_file": {"path": "attack-file", "content": "x"},
    "e2b_write_file_by_path": {"path": "attack-file", "content": "x"},
}
_QUERIES: Final[Mapping[str, dict[str, str]]] = {
    "wait_for_process": {"timeout_s": "0.1"},
    "list_metrics": {"session_ids": "{session_id}"},
    "list_files": {"path": "/workspace"},
    "stat_file": {"path": "secret"},
    "resolve_path": {"path": "secret"},
    "read_file": {"path": "secret"},
    "write_file": {"path": "attack-file"},
    "remove_file": {"path": "attack-file-2", "recursive": "true"},
    "read_archive": {"path": "/workspace"},
    "write_archive": {"path": "/workspace"},
    "search_files": {"glob": "secret"},
    "detach_volume": {"path": MOUNTED_AT},
    "flat_download_file": {"path": "secret"},
    "flat_list_files": {"path": "/workspace"},
    "e2b_remove_file": {"path": "attack-file"},
    "e2b_remove_file_by_query": {"path": "attack-file"},
}
_FIRST_MESSAGES: Final = {
    "exec_socket": b'{"command": "true"}',
    "code_socket": b'{"code": "true", "language": "bash"}',
    "forward_socket": b"eof",
}
_NO_ARTIFACT: Final = f"art_{'0' * 27}"
_NO_SNAPSHOT: Final = f"snap_{'0' * 27}"
_BOUNDARY: Final = "warren-attack-boundary"


@dataclass(frozen=True, slots=True)
class ApiRequest:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


def request_for(row: Operation, session: str, process: str) -> ApiRequest:
    path = row.path.replace("{session_id}", session).replace("{process_id}", process).replace("{port}", "3000")
    path = (
        path.replace("{kind}", "prompts")
        .replace("{entry}", "coding")
        .replace("{artifact_id}", _NO_ARTIFACT)
        .replace("{snapshot}", _NO_SNAPSHOT)
        .replace("{volume}", VOLUME)
    )
    path = path.replace("{context_id}", "ctx_bash").replace("{execution_id}", process)
    handler = HANDLERS.get(row.name)
    asked = _QUERIES.get(row.name) or _examples(handler and handler.query)
    query = {name: str(value).replace("{session_id}", session) for name, value in asked.items()}
    body = _BODIES.get(row.name) or _examples(handler and handler.body) or None
    if row.session_in is SessionIn.QUERY:
        query["session_id"] = session
    if row.session_in is SessionIn.JSON:
        body = {**(body or {}), "session_id": session}
    if row.method == "WEBSOCKET":
        return ApiRequest("WEBSOCKET", path, query, _FIRST_MESSAGES.get(row.name, b""))
    if row.reads is Reads.FORM:
        return ApiRequest(
            row.method, path, query, _form(session), {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
        )
    if row.reads is Reads.RAW:
        return ApiRequest(row.method, path, query, _TAR if "archive" in row.name else b"attack")
    return ApiRequest(row.method, path, query, body)


def _examples(model: type[BaseModel] | None) -> dict[str, Any]:
    """Returns what the model requires, each with its first example."""
    fields = model.model_fields.items() if model is not None else ()
    return {name: field.examples[0] for name, field in fields if field.is_required() and field.examples}


def _form(session: str) -> bytes:
    parts = [
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="session_id"\r\n\r\n{session}\r\n',
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="attack-file"\r\n\r\nx\r\n',
        f"--{_BOUNDARY}--\r\n",
    ]
    return "".join(parts).encode()


_MORE_ROUTES: Final = (
    ("GET", "/api/whoami"),
    ("GET", "/api/audit"),
    ("GET", "/api/usage"),
    ("GET", "/api/events"),
    ("GET", "/api/quotas"),
    ("GET", "/api/admin/quotas"),
    ("GET", "/api/stats"),
    ("GET", "/metrics"),
    ("GET", "/api/webhooks"),
    ("POST", "/api/webhooks"),
    ("GET", "/api/secrets"),
    ("PUT", "/api/secrets/attack"),
    ("DELETE", "/api/secrets/attack"),
    ("GET", "/api/admin/keys"),
    ("POST", "/api/admin/keys"),
    ("GET", "/api/admin/tenants"),
    ("GET", "/api/admin/audit"),
    ("GET", "/api/admin/usage"),
    ("GET", "/api/cluster"),
    ("GET", "/api/cluster/demand"),
)
GUARDED_ROUTES: Final = (
    *((row.method.replace("WEBSOCKET", "GET"), row.path) for row in OPERATIONS.values()),
    *_MORE_ROUTES,
)
"""Methods and paths of every operation and of the other routes that need a key."""


def target_of(path: str, tenant: Tenant) -> str:
    path = path.replace("{session_id}", tenant.session).replace("{process_id}", tenant.process).replace("{port}", "1")
    path = path.replace("{context_id}", "ctx_bash").replace("{execution_id}", "cell_1")
    return (
        path.replace("{kind}", "prompts")
        .replace("{entry}", "coding")
        .replace("{artifact_id}", _NO_ARTIFACT)
        .replace("{snapshot}", _NO_SNAPSHOT)
        .replace("{volume}", VOLUME)
    )
