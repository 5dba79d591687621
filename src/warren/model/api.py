"""The API as a table: one row for each operation on sessions.

A row says what everybody but the operation's own code must know of it. Servers make routes of the rows, coordinators
find out from them which session a request is about, the audit record takes its action names from them, the clients
their requests, and the local mode performs them without HTTP. What an operation does, and the arguments it takes, is
the business of its handler (`warren.sessions.operations`).

What E2B's clients ask for has rows too (E2B_OPERATIONS), under the inner paths that model/e2b.py describes. Their
handlers (`warren.http.e2b`) read and answer in E2B's words.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from warren.model.access import Scope


class Answers(Enum):
    """What comes back: one JSON value, nothing (204), events as they happen, either of the two as the caller asks, the
    bytes of a file, or a WebSocket."""

    VALUE = "value"
    NOTHING = "nothing"
    EVENTS = "events"
    VALUE_OR_EVENTS = "value or events"
    BYTES = "bytes"
    SOCKET = "socket"


class Reads(Enum):
    """How the body of a request is read. JSON is taken under any content type, because `curl -d` calls it a form."""

    NOTHING = "nothing"
    JSON = "json"
    OPTIONAL_JSON = "optional json"
    RAW = "raw"
    FORM = "form"


class SessionIn(Enum):
    """Where a request names its session. For QUERY, JSON and FORM the fields are `session_id` and `thread_id`; a HEADER
    and the HOST name are named by the row's `session_name`."""

    PATH = "path"
    QUERY = "query"
    JSON = "json"
    FORM = "form"
    HEADER = "header"
    HOST = "host"
    NOWHERE = "nowhere"


class Makes(Enum):
    """Whether a request makes a session: always, or for a thread that has none."""

    NOTHING = "nothing"
    SESSION = "session"
    THREAD_SESSION = "session of a thread"


class Wire(Enum):
    """In whose words a request and its answer are."""

    OWN = "own"
    E2B = "e2b"


@dataclass(frozen=True, slots=True)
class Operation:
    """`name` is the operation's id in the OpenAPI document, and its action in the audit record unless `action` is.
    `scope` is what the caller's key must have; None: whoever was let in may.

    `counts`: performing it keeps the session alive. `in_sandbox`: its handler is given the session's sandbox.
    `watched`: it is cancelled when its caller goes away. `repeatable`: a client may send it again when it cannot know
    whether it arrived. `audited` are the arguments that the audit record shows, each under the name it has there.
    `in_query` are the arguments that travel in the query although the others are a JSON body. `session_name` is the
    header, or the pattern of host names whose first group is the session id. `of_machine`: it is about a machine that
    runs sandboxes, so a coordinator sends it to the worker that `worker` in the query names, else to any.
    `of_named_machine`: it is about the process that answers, unless the query names a worker. `of_artifact`: it needs
    the content of an artifact, so a coordinator sends it to the worker that keeps it, if one does. `of_snapshot`: the
    same for a snapshot; if it names none, any worker that may have the environment in the query answers. `of_log`: the
    same for the log of its session, which outlives that. `of_volume`: it needs the disk of a volume, so a
    coordinator sends it to the worker that has it, or to one that can have a new one.
    """

    name: str
    method: str
    path: str
    scope: Scope | None
    summary: str
    answers: Answers = Answers.VALUE
    reads: Reads = Reads.NOTHING
    session_in: SessionIn = SessionIn.PATH
    makes: Makes = Makes.NOTHING
    status: int = 200
    counts: bool = True
    in_sandbox: bool = True
    watched: bool = False
    repeatable: bool = False
    audited: tuple[tuple[str, str], ...] = ()
    in_query: tuple[str, ...] = ()
    session_name: str = ""
    of_machine: bool = False
    of_named_machine: bool = False
    of_artifact: bool = False
    of_snapshot: bool = False
    of_log: bool = False
    of_volume: bool = False
    wire: Wire = Wire.OWN
    action: str = ""

    @property
    def names_in_path(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    @property
    def takes_stream(self) -> bool:
        """Whether the body may be of any length and is read as it comes."""
        return self.reads in (Reads.RAW, Reads.FORM)

    @property
    def tag(self) -> str:
        """The group of the OpenAPI document that the operation is in."""
        if self.path.startswith("/api/e2b"):
            return "e2b"
        if not self.path.startswith("/api/"):
            return "flat"
        if self.path.startswith("/api/registry"):
            return "registry"
        if self.path.startswith("/api/artifacts"):
            return "artifacts"
        if self.path.startswith("/api/snapshots"):
            return "snapshots"
        if self.path.startswith(_VOLUMES):
            return "volumes"
        if self.path.startswith("/api/admin"):
            return "admin"
        if self.path == "/api/history":
            return "server"
        if not self.path.startswith(("/api/sessions", "/api/metrics")):
            return "environments"
        part = self.path.removeprefix(SESSION).strip("/").split("/")[0]
        tags = {"processes": "processes", "kill-all": "processes", "files": "files", "exec": "commands"}
        tags |= {"ports": "ports", "links": "ports", "forward": "ports", "contexts": "code", "code": "code"}
        tags |= {"artifacts": "artifacts", "snapshots": "snapshots", "fork": "snapshots", "volumes": "volumes"}
        return tags.get(part, "sessions")


SESSION: Final = "/api/sessions/{session_id}"
_PROCESSES: Final = f"{SESSION}/processes"
_PROCESS: Final = f"{SESSION}/processes/{{process_id}}"
_FILES: Final = f"{SESSION}/files"
_E2B_FILES: Final = "/api/e2b/files"
_E2B_FILES_OF: Final = f"{_E2B_FILES}/{{session_id}}"
_CONTEXTS: Final = f"{SESSION}/contexts"
_CONTEXT: Final = f"{SESSION}/contexts/{{context_id}}"
_CODE: Final = f"{SESSION}/code"
_ARTIFACT: Final = "/api/artifacts/{artifact_id}"
_SNAPSHOT: Final = "/api/snapshots/{snapshot}"
_BUILDS: Final = "/api/admin/builds"
_VOLUMES: Final = "/api/volumes"
_VOLUME: Final = f"{_VOLUMES}/{{volume}}"
_PATH: Final = (("path", "path"),)

_ROWS: Final = (
    Operation(
        "create_session", "POST", "/api/sessions", Scope.SESSIONS, "Create a session, or get the thread's",
        reads=Reads.OPTIONAL_JSON, session_in=SessionIn.JSON, makes=Makes.SESSION, status=201, in_sandbox=False,
        watched=True,
    ),
    Operation(
        "list_sessions", "GET", "/api/sessions", Scope.READ, "List your sessions", session_in=SessionIn.NOWHERE,
        in_sandbox=False,
    ),
    Operation("get_session", "GET", SESSION, Scope.READ, "Show a session", in_sandbox=False),
    Operation(
        "delete_session", "DELETE", SESSION, Scope.SESSIONS, "End a session and destroy its sandbox", in_sandbox=False
    ),
    Operation(
        "keep_session_alive", "POST", f"{SESSION}/keep-alive", Scope.SESSIONS, "Start the idle clock anew",
        in_sandbox=False, repeatable=True,
    ),
    Operation(
        "pause_session", "POST", f"{SESSION}/pause", Scope.SESSIONS, "Stop everything in the sandbox for a while",
        reads=Reads.OPTIONAL_JSON, in_sandbox=False, repeatable=True,
    ),
    Operation(
        "resume_session", "POST", f"{SESSION}/resume", Scope.SESSIONS, "Let everything in the sandbox go on",
        in_sandbox=False, repeatable=True,
    ),
    Operation(
        "change_session", "PATCH", SESSION, Scope.SESSIONS, "Change time-outs and metadata", reads=Reads.JSON,
        in_sandbox=False,
    ),
    Operation(
        "get_network", "GET", f"{SESSION}/network", Scope.READ, "Show what the sandbox may reach, and what it reached",
        in_sandbox=False,
    ),
    Operation(
        "set_network", "PUT", f"{SESSION}/network", Scope.SESSIONS, "Change what the sandbox may reach",
        reads=Reads.JSON, in_sandbox=False, repeatable=True,
        audited=(("internet", "internet"), ("allow", "allow"), ("deny", "deny")),
    ),
    Operation(
        "get_metrics", "GET", f"{SESSION}/metrics", Scope.READ, "Show what a session uses now, and used before",
        in_sandbox=False,
    ),
    Operation(
        "list_metrics", "GET", "/api/metrics", Scope.READ, "Show what several sessions use",
        session_in=SessionIn.NOWHERE, in_sandbox=False,
    ),
    # -- what sessions can be made of
    Operation(
        "list_environments", "GET", "/api/environments", Scope.READ, "List the environments you may use",
        session_in=SessionIn.NOWHERE, in_sandbox=False,
    ),
    Operation(
        "list_images", "GET", "/api/images", Scope.READ, "List the images you may use", session_in=SessionIn.NOWHERE,
        in_sandbox=False, of_machine=True,
    ),
    # -- the machine, for operators
    Operation(
        "get_history", "GET", "/api/history", Scope.ADMIN, "Figures of the server over the last hour or day",
        session_in=SessionIn.NOWHERE, in_sandbox=False, of_named_machine=True,
    ),
    Operation(
        "get_doctor_report", "GET", "/api/admin/doctor", Scope.ADMIN, "What the doctor says of the machine",
        session_in=SessionIn.NOWHERE, in_sandbox=False, watched=True, of_machine=True,
    ),
    Operation(
        "list_builds", "GET", _BUILDS, Scope.ADMIN, "List builds of images", session_in=SessionIn.NOWHERE,
        in_sandbox=False, of_machine=True,
    ),
    Operation(
        "start_build", "POST", _BUILDS, Scope.ADMIN, "Build an image", reads=Reads.JSON, session_in=SessionIn.NOWHERE,
        status=202, in_sandbox=False, repeatable=True, in_query=("worker",), of_machine=True,
    ),
    Operation(
        "cancel_build", "DELETE", _BUILDS, Scope.ADMIN, "End the build of an image", session_in=SessionIn.NOWHERE,
        in_sandbox=False, of_machine=True,
    ),
    # -- the registry
    Operation(
        "list_registry", "GET", "/api/registry/{kind}", Scope.READ, "List the registry's entries of a kind",
        session_in=SessionIn.NOWHERE, in_sandbox=False,
    ),
    Operation(
        "get_registry_entry", "GET", "/api/registry/{kind}/{entry}", Scope.READ, "Show an entry of the registry",
        session_in=SessionIn.NOWHERE, in_sandbox=False,
    ),
    Operation(
        "render_prompt", "POST", "/api/registry/prompts/{entry}/render", Scope.READ, "Fill in a prompt's variables",
        reads=Reads.OPTIONAL_JSON, session_in=SessionIn.NOWHERE, in_sandbox=False, repeatable=True,
    ),
    # -- commands
    Operation(
        "run_command", "POST", f"{SESSION}/exec", Scope.EXEC, "Run a command", Answers.VALUE_OR_EVENTS,
        reads=Reads.JSON, in_sandbox=False, watched=True, in_query=("encoding",),
    ),
    Operation(
        "exec_socket", "WEBSOCKET", f"{SESSION}/exec", Scope.EXEC, "Run a command over a WebSocket", Answers.SOCKET
    ),
    # -- processes
    Operation(
        "start_process", "POST", _PROCESSES, Scope.EXEC, "Start a command in the background", reads=Reads.JSON,
        status=201,
    ),
    Operation("list_processes", "GET", _PROCESSES, Scope.READ, "List commands and terminals", counts=False),
    Operation("get_process", "GET", _PROCESS, Scope.READ, "Show a command or terminal", counts=False),
    Operation(
        "read_output", "GET", f"{_PROCESS}/output", Scope.READ, "Read its output from an offset on",
        Answers.VALUE_OR_EVENTS, counts=False, watched=True,
    ),
    Operation(
        "wait_for_process", "GET", f"{_PROCESS}/wait", Scope.READ, "Wait for its end", counts=False, watched=True
    ),
    Operation(
        "write_stdin", "POST", f"{_PROCESS}/stdin", Scope.EXEC, "Write to its standard input", Answers.NOTHING,
        reads=Reads.JSON, status=204,
    ),
    Operation(
        "send_signal", "POST", f"{_PROCESS}/signal", Scope.EXEC, "Send it a signal", Answers.NOTHING, reads=Reads.JSON,
        status=204,
    ),
    Operation(
        "resize_terminal", "POST", f"{_PROCESS}/resize", Scope.EXEC, "Change the size of its terminal",
        Answers.NOTHING, reads=Reads.JSON, status=204, counts=False,
    ),
    Operation(
        "kill_process", "POST", f"{_PROCESS}/kill", Scope.EXEC, "End it and everything it started",
        reads=Reads.OPTIONAL_JSON, repeatable=True,
    ),
    Operation(
        "kill_all", "POST", f"{SESSION}/kill-all", Scope.EXEC, "End everything that runs in the sandbox",
        repeatable=True,
    ),
    Operation(
        "forget_process", "DELETE", _PROCESS, Scope.EXEC, "End it and forget its output", Answers.NOTHING, status=204
    ),
    Operation(
        "attach_socket", "WEBSOCKET", f"{_PROCESS}/attach", Scope.EXEC, "Attach to a command over a WebSocket",
        Answers.SOCKET, counts=False,
    ),
    Operation(
        "terminal_socket", "WEBSOCKET", f"{SESSION}/terminal", Scope.EXEC, "Open a terminal over a WebSocket",
        Answers.SOCKET, counts=False,
    ),
    # -- code contexts
    Operation(
        "create_context", "POST", _CONTEXTS, Scope.EXEC, "Start an interpreter that keeps its state",
        reads=Reads.OPTIONAL_JSON, status=201,
    ),
    Operation("list_contexts", "GET", _CONTEXTS, Scope.READ, "List code contexts", counts=False),
    Operation(
        "delete_context", "DELETE", _CONTEXT, Scope.EXEC, "End a code context", Answers.NOTHING, status=204
    ),
    Operation(
        "restart_context", "POST", f"{_CONTEXT}/restart", Scope.EXEC, "End a code context and start it anew"
    ),
    Operation(
        "interrupt_context", "POST", f"{_CONTEXT}/interrupt", Scope.EXEC, "Interrupt the cell that a context runs"
    ),
    Operation(
        "run_code", "POST", _CODE, Scope.EXEC, "Run code in a context", Answers.VALUE_OR_EVENTS, reads=Reads.JSON,
        in_sandbox=False, watched=True,
    ),
    Operation("code_socket", "WEBSOCKET", _CODE, Scope.EXEC, "Run code over a WebSocket", Answers.SOCKET),
    Operation(
        "get_execution", "GET", f"{_CODE}/{{execution_id}}", Scope.READ, "Read what a cell gives or gave",
        Answers.VALUE_OR_EVENTS, counts=False, watched=True,
    ),
    # -- ports
    Operation(
        "list_ports", "GET", f"{SESSION}/ports", Scope.READ, "List what listens, or wait for a port", counts=False,
        watched=True,
    ),
    Operation(
        "change_port", "PUT", f"{SESSION}/ports/{{port}}", Scope.SESSIONS, "Change how a port's preview is opened",
        reads=Reads.JSON, in_sandbox=False, repeatable=True, audited=(("public", "public"),),
    ),
    Operation(
        "create_link", "POST", f"{SESSION}/links", Scope.EXEC, "Make a link to the preview of a port",
        reads=Reads.JSON, session_in=SessionIn.NOWHERE, status=201, in_sandbox=False, audited=(("port", "port"),),
    ),
    Operation(
        "revoke_links", "DELETE", f"{SESSION}/links", Scope.EXEC, "Revoke all links to previews", in_sandbox=False
    ),
    Operation(
        "forward_socket", "WEBSOCKET", f"{SESSION}/forward/{{port}}", Scope.EXEC,
        "Connect to a port over a WebSocket", Answers.SOCKET, counts=False,
    ),
    # -- files
    Operation("list_files", "GET", _FILES, Scope.FILES, "List a directory", audited=_PATH),
    Operation("stat_file", "GET", f"{_FILES}/stat", Scope.FILES, "Show a file or directory", audited=_PATH),
    Operation(
        "resolve_path", "GET", f"{_FILES}/realpath", Scope.FILES, "Find the path without links", audited=_PATH
    ),
    Operation("read_file", "GET", f"{_FILES}/content", Scope.FILES, "Read a file", Answers.BYTES, audited=_PATH),
    Operation(
        "write_file", "PUT", f"{_FILES}/content", Scope.FILES, "Write a file", reads=Reads.RAW, status=201,
        audited=_PATH,
    ),
    Operation(
        "make_directory", "POST", f"{_FILES}/mkdir", Scope.FILES, "Make a directory", reads=Reads.JSON, status=201,
        audited=_PATH,
    ),
    Operation(
        "move_file", "POST", f"{_FILES}/move", Scope.FILES, "Move or rename", reads=Reads.JSON,
        audited=(("source", "path"), ("target", "target")),
    ),
    Operation(
        "remove_file", "DELETE", _FILES, Scope.FILES, "Remove a file or directory", Answers.NOTHING, status=204,
        audited=_PATH,
    ),
    Operation(
        "read_archive", "GET", f"{_FILES}/archive", Scope.FILES, "Read a tree as a tar", Answers.BYTES, audited=_PATH
    ),
    Operation(
        "write_archive", "PUT", f"{_FILES}/archive", Scope.FILES, "Write a tree from a tar", reads=Reads.RAW,
        status=201, audited=_PATH,
    ),
    Operation(
        "watch_files", "GET", f"{_FILES}/watch", Scope.FILES, "Watch for changes", Answers.EVENTS, counts=False,
        audited=_PATH,
    ),
    Operation(
        "search_files", "GET", f"{_FILES}/search", Scope.FILES, "Search files by name and content",
        Answers.VALUE_OR_EVENTS, watched=True, audited=(("path", "path"), ("pattern", "pattern"), ("glob", "glob")),
    ),
    # -- artifacts: files that outlive their session
    Operation(
        "save_artifacts", "POST", f"{SESSION}/artifacts", Scope.FILES, "Save files as artifacts", reads=Reads.JSON,
        status=201, in_sandbox=False, repeatable=True, audited=(("paths", "paths"),),
    ),
    Operation(
        "list_artifacts", "GET", "/api/artifacts", Scope.FILES, "List your artifacts", session_in=SessionIn.NOWHERE,
        in_sandbox=False,
    ),
    Operation(
        "get_artifact", "GET", _ARTIFACT, Scope.FILES, "Show an artifact", session_in=SessionIn.NOWHERE,
        in_sandbox=False,
    ),
    Operation(
        "read_artifact", "GET", f"{_ARTIFACT}/content", Scope.FILES, "Read an artifact", Answers.BYTES,
        session_in=SessionIn.NOWHERE, in_sandbox=False, of_artifact=True,
    ),
    Operation(
        "delete_artifact", "DELETE", _ARTIFACT, Scope.FILES, "Delete an artifact", Answers.NOTHING,
        session_in=SessionIn.NOWHERE, status=204, in_sandbox=False, of_artifact=True,
    ),
    # -- snapshots: disks that outlive their session
    Operation(
        "create_snapshot", "POST", f"{SESSION}/snapshots", Scope.SESSIONS, "Save the session's disk as a snapshot",
        reads=Reads.OPTIONAL_JSON, status=201, in_sandbox=False,
    ),
    Operation(
        "list_snapshots", "GET", "/api/snapshots", Scope.READ, "List your snapshots", session_in=SessionIn.NOWHERE,
        in_sandbox=False,
    ),
    Operation(
        "get_snapshot", "GET", _SNAPSHOT, Scope.READ, "Show a snapshot", session_in=SessionIn.NOWHERE,
        in_sandbox=False,
    ),
    Operation(
        "read_snapshot", "GET", f"{_SNAPSHOT}/content", Scope.FILES, "Download a snapshot", Answers.BYTES,
        session_in=SessionIn.NOWHERE, in_sandbox=False, of_snapshot=True,
    ),
    Operation(
        "upload_snapshot", "PUT", "/api/snapshots", Scope.FILES, "Make a snapshot of a download or a tar",
        reads=Reads.RAW, session_in=SessionIn.NOWHERE, status=201, in_sandbox=False, of_snapshot=True,
        audited=(("name", "name"), ("environment", "environment")),
    ),
    Operation(
        "delete_snapshot", "DELETE", _SNAPSHOT, Scope.SESSIONS, "Delete a snapshot", Answers.NOTHING,
        session_in=SessionIn.NOWHERE, status=204, in_sandbox=False, of_snapshot=True,
    ),
    Operation(
        "fork_session", "POST", f"{SESSION}/fork", Scope.SESSIONS, "Start sessions with the same files",
        reads=Reads.OPTIONAL_JSON, status=201, in_sandbox=False,
    ),
    # -- logs: what a session did, also after its end
    Operation(
        "read_logs", "GET", f"{SESSION}/logs", Scope.READ, "Read what a session did", Answers.VALUE_OR_EVENTS,
        in_sandbox=False, counts=False, watched=True, of_log=True,
    ),
    Operation(
        "delete_logs", "DELETE", f"{SESSION}/logs", Scope.SESSIONS, "Delete the log of a session", Answers.NOTHING,
        status=204, in_sandbox=False, counts=False, of_log=True,
    ),
    # -- volumes: disks that outlive their sessions
    Operation(
        "create_volume", "POST", _VOLUMES, Scope.SESSIONS, "Make a volume", reads=Reads.JSON,
        session_in=SessionIn.NOWHERE, status=201, in_sandbox=False, of_volume=True,
        audited=(("name", "volume"), ("size_mb", "size_mb")),
    ),
    Operation(
        "list_volumes", "GET", _VOLUMES, Scope.READ, "List your volumes", session_in=SessionIn.NOWHERE,
        in_sandbox=False,
    ),
    Operation(
        "get_volume", "GET", _VOLUME, Scope.READ, "Show a volume, and who uses it", session_in=SessionIn.NOWHERE,
        in_sandbox=False, of_volume=True,
    ),
    Operation(
        "change_volume", "PATCH", _VOLUME, Scope.SESSIONS, "Make a volume larger, change its metadata",
        reads=Reads.JSON, session_in=SessionIn.NOWHERE, in_sandbox=False, of_volume=True,
        audited=(("size_mb", "size_mb"),),
    ),
    Operation(
        "copy_volume", "POST", f"{_VOLUME}/copy", Scope.SESSIONS, "Copy a volume that is not in use",
        reads=Reads.JSON, session_in=SessionIn.NOWHERE, status=201, in_sandbox=False, of_volume=True,
        audited=(("name", "to"),),
    ),
    Operation(
        "delete_volume", "DELETE", _VOLUME, Scope.SESSIONS, "Delete a volume that is not in use", Answers.NOTHING,
        session_in=SessionIn.NOWHERE, status=204, in_sandbox=False, of_volume=True,
    ),
    Operation(
        "attach_volume", "POST", f"{SESSION}/volumes", Scope.SESSIONS, "Mount a volume in a running sandbox",
        reads=Reads.JSON, status=201, in_sandbox=False, audited=(("name", "volume"), ("path", "path")),
    ),
    Operation(
        "detach_volume", "DELETE", f"{SESSION}/volumes", Scope.SESSIONS, "Take a volume away from a sandbox",
        in_sandbox=False, audited=_PATH,
    ),
    # -- the flat endpoints: the same in the words of older clients
    Operation(
        "flat_create_session", "POST", "/create_session", Scope.SESSIONS, "Create a session",
        reads=Reads.OPTIONAL_JSON, session_in=SessionIn.JSON, makes=Makes.SESSION, in_sandbox=False, watched=True,
    ),
    Operation(
        "flat_execute", "POST", "/execute", Scope.EXEC, "Run a command in bash", Answers.VALUE_OR_EVENTS,
        reads=Reads.JSON, session_in=SessionIn.JSON, makes=Makes.THREAD_SESSION, in_sandbox=False, watched=True,
    ),
    Operation(
        "flat_upload_file", "POST", "/upload_file", Scope.FILES, "Upload a file", reads=Reads.FORM,
        session_in=SessionIn.FORM, makes=Makes.THREAD_SESSION, in_sandbox=False,
    ),
    Operation(
        "flat_download_file", "GET", "/download_file", Scope.FILES, "Download a file", Answers.BYTES,
        session_in=SessionIn.QUERY, in_sandbox=False,
    ),
    Operation(
        "flat_list_files", "GET", "/list_files", Scope.FILES, "List a directory", session_in=SessionIn.QUERY,
        in_sandbox=False,
    ),
    Operation(
        "flat_cleanup", "POST", "/cleanup", Scope.SESSIONS, "End a session and destroy its sandbox", reads=Reads.JSON,
        session_in=SessionIn.JSON, in_sandbox=False,
    ),
    Operation(
        "flat_list_sessions", "GET", "/sessions", Scope.READ, "List your sessions", session_in=SessionIn.NOWHERE,
        in_sandbox=False,
    ),
    # -- code and files in the words of E2B-style clients
    Operation(
        "e2b_execute", "POST", "/api/e2b/execute", Scope.EXEC, "Run code", Answers.VALUE_OR_EVENTS, reads=Reads.JSON,
        session_in=SessionIn.JSON, makes=Makes.THREAD_SESSION, in_sandbox=False, watched=True,
    ),
    Operation(
        "e2b_read_files", "GET", _E2B_FILES_OF, Scope.FILES,
        "List the workspace, or read a file of it", in_sandbox=False,
    ),
    Operation(
        "e2b_read_files_by_query", "GET", _E2B_FILES, Scope.FILES,
        "List the workspace, or read a file of it", session_in=SessionIn.QUERY, in_sandbox=False,
    ),
    Operation(
        "e2b_write_file", "POST", _E2B_FILES, Scope.FILES, "Write a file", reads=Reads.JSON,
        session_in=SessionIn.JSON, makes=Makes.THREAD_SESSION, status=201, in_sandbox=False,
    ),
    Operation(
        "e2b_write_file_by_path", "POST", _E2B_FILES_OF, Scope.FILES, "Write a file", reads=Reads.JSON, status=201,
        in_sandbox=False,
    ),
    Operation(
        "e2b_remove_file", "DELETE", _E2B_FILES_OF, Scope.FILES, "Remove a file or directory", Answers.NOTHING,
        status=204, in_sandbox=False,
    ),
    Operation(
        "e2b_remove_file_by_query", "DELETE", _E2B_FILES, Scope.FILES, "Remove a file or directory", Answers.NOTHING,
        session_in=SessionIn.QUERY, status=204, in_sandbox=False,
    ),
)  # fmt: skip
OPERATIONS: Final = {row.name: row for row in _ROWS}

_API: Final = "/e2b/api"
_ENVD: Final = "/e2b/envd/{session_id}"
_PROCESS_CALL: Final = f"{_ENVD}/process.Process"
_FILE_CALL: Final = f"{_ENVD}/filesystem.Filesystem"
_INTERPRETER: Final = "/e2b/code/{session_id}"
_SANDBOX: Final = "/sandboxes/{sandbox_id}"
_TEMPLATE: Final = "/templates/{template}"
_BUILD: Final = f"{_TEMPLATE}/builds/{{build}}"
_CONTENT: Final = "/volumecontent/{volume}"
_NO_SECRETS: Final = "secrets are not supported over this API: `warren secrets` sets those of sandboxes"
_NO_EVENTS: Final = "events of sandboxes are not supported over this API: `warren webhooks` tells of sessions"
E2B_UNSUPPORTED: Final = "e2b_unsupported"
"""The action of what E2B's clients can ask for and this server does not have: the row's summary says what."""


def _e2b(
    name: str,
    method: str,
    path: str,
    scope: Scope | None,
    summary: str,
    *,
    action: str = "",
    reads: Reads = Reads.NOTHING,
    makes: Makes = Makes.NOTHING,
    of_snapshot: bool = False,
    of_log: bool = False,
    of_volume: bool = False,
) -> Operation:
    names_session = "{session_id}" in path or "{sandbox_id}" in path
    return Operation(
        name, method, path, scope, summary, reads=reads, makes=makes, in_sandbox=False, wire=Wire.E2B, action=action,
        of_snapshot=of_snapshot, of_log=of_log, of_volume=of_volume,
        session_in=SessionIn.PATH if names_session else SessionIn.NOWHERE,
    )  # fmt: skip


def _unsupported(methods: str, path: str, why: str) -> Iterable[Operation]:
    for method in methods.split():
        name = f"{E2B_UNSUPPORTED} {method} {path}"
        reads = Reads.RAW if method == "PUT" else Reads.NOTHING
        yield _e2b(name, method, _API + path, Scope.READ, why, action=E2B_UNSUPPORTED, reads=reads)


_E2B_ROWS: Final = (
    # -- the control plane: sandboxes
    _e2b(
        "e2b_create_sandbox", "POST", f"{_API}/sandboxes", Scope.SESSIONS, "Create a sandbox", makes=Makes.SESSION
    ),
    _e2b(
        "e2b_create_sandbox_v2", "POST", f"{_API}/v2/sandboxes", Scope.SESSIONS, "Create a sandbox",
        action="e2b_create_sandbox", makes=Makes.SESSION,
    ),
    _e2b("e2b_list_sandboxes", "GET", f"{_API}/sandboxes", Scope.READ, "List sandboxes, many at once"),
    _e2b(
        "e2b_list_sandboxes_v2", "GET", f"{_API}/v2/sandboxes", Scope.READ, "List sandboxes by pages",
        action="e2b_list_sandboxes",
    ),
    _e2b("e2b_get_sandbox", "GET", f"{_API}{_SANDBOX}", Scope.READ, "Show a sandbox"),
    _e2b("e2b_kill_sandbox", "DELETE", f"{_API}{_SANDBOX}", Scope.SESSIONS, "End a sandbox"),
    _e2b("e2b_pause_sandbox", "POST", f"{_API}{_SANDBOX}/pause", Scope.SESSIONS, "Pause a sandbox"),
    _e2b(
        "e2b_connect_sandbox", "POST", f"{_API}{_SANDBOX}/connect", Scope.SESSIONS,
        "Resume or prolong a sandbox, get its tokens",
    ),
    _e2b(
        "e2b_connect_sandbox_v2", "POST", f"{_API}/v2{_SANDBOX}/connect", Scope.SESSIONS,
        "Resume or prolong a sandbox, get its tokens", action="e2b_connect_sandbox",
    ),
    _e2b(
        "e2b_resume_sandbox", "POST", f"{_API}{_SANDBOX}/resume", Scope.SESSIONS, "Resume a sandbox",
        action="e2b_connect_sandbox",
    ),
    _e2b("e2b_fork_sandbox", "POST", f"{_API}{_SANDBOX}/fork", Scope.SESSIONS, "Start sandboxes with the same files"),
    _e2b("e2b_create_snapshot", "POST", f"{_API}{_SANDBOX}/snapshots", Scope.SESSIONS, "Save its files"),
    _e2b("e2b_list_snapshots", "GET", f"{_API}/snapshots", Scope.READ, "List snapshots"),
    _e2b("e2b_get_logs", "GET", f"{_API}{_SANDBOX}/logs", Scope.READ, "Read what it did", of_log=True),
    _e2b(
        "e2b_get_logs_v2", "GET", f"{_API}/v2{_SANDBOX}/logs", Scope.READ, "Read what it did", action="e2b_get_logs",
        of_log=True,
    ),
    _e2b("e2b_set_timeout", "POST", f"{_API}{_SANDBOX}/timeout", Scope.SESSIONS, "Set when a sandbox ends"),
    _e2b("e2b_refresh_sandbox", "POST", f"{_API}{_SANDBOX}/refreshes", Scope.SESSIONS, "Prolong a sandbox"),
    _e2b("e2b_change_network", "PUT", f"{_API}{_SANDBOX}/network", Scope.SESSIONS, "Change what it may reach"),
    _e2b("e2b_get_metrics", "GET", f"{_API}{_SANDBOX}/metrics", Scope.READ, "Show what a sandbox uses"),
    _e2b("e2b_list_metrics", "GET", f"{_API}/sandboxes/metrics", Scope.READ, "Show what several sandboxes use"),
    # -- the control plane: templates
    _e2b("e2b_list_templates", "GET", f"{_API}/templates", Scope.READ, "List templates"),
    _e2b(
        "e2b_list_templates_v2", "GET", f"{_API}/v2/templates", Scope.READ, "List templates by pages",
        action="e2b_list_templates",
    ),
    _e2b(
        "e2b_list_default_templates", "GET", f"{_API}/default-templates", Scope.READ, "List templates of all tenants",
        action="e2b_list_templates",
    ),
    _e2b(
        "e2b_get_template_alias", "GET", f"{_API}/templates/aliases/{{alias}}", Scope.READ, "Find a template by name",
        action="e2b_get_template",
    ),
    _e2b("e2b_list_tags", "GET", f"{_API}{_TEMPLATE}/tags", Scope.READ, "List the tags of a template"),
    _e2b(
        "e2b_count_tags", "GET", f"{_API}{_TEMPLATE}/tags/count", Scope.READ, "Count them", action="e2b_list_tags"
    ),
    _e2b(
        "e2b_has_tag", "GET", f"{_API}{_TEMPLATE}/tags/exists", Scope.READ, "Whether there is one",
        action="e2b_list_tags",
    ),
    _e2b(
        "e2b_list_tag_groups", "GET", f"{_API}{_TEMPLATE}/tags/groups", Scope.READ, "Refused", action="e2b_list_tags"
    ),
    _e2b(
        "e2b_list_tag_assignments", "GET", f"{_API}{_TEMPLATE}/tags/{{tag}}/assignments", Scope.READ, "Refused",
        action="e2b_list_tags",
    ),
    _e2b(
        "e2b_add_tags", "POST", f"{_API}/templates/tags", Scope.SESSIONS, "Add tags", action="e2b_change_template"
    ),
    _e2b(
        "e2b_remove_tags", "DELETE", f"{_API}/templates/tags", Scope.SESSIONS, "Remove tags",
        action="e2b_change_template",
    ),
    _e2b("e2b_get_template", "GET", f"{_API}{_TEMPLATE}", Scope.READ, "Show a template"),
    _e2b("e2b_change_template", "PATCH", f"{_API}{_TEMPLATE}", Scope.SESSIONS, "Change a template"),
    _e2b(
        "e2b_change_template_v2", "PATCH", f"{_API}/v2{_TEMPLATE}", Scope.SESSIONS, "Change a template",
        action="e2b_change_template",
    ),
    _e2b(
        "e2b_delete_template", "DELETE", f"{_API}{_TEMPLATE}", Scope.SESSIONS, "Delete a template or snapshot",
        of_snapshot=True,
    ),
    _e2b(
        "e2b_request_build", "POST", f"{_API}/v3/templates", Scope.SESSIONS, "Make a template, or a build of it",
        action="e2b_build_template",
    ),
    _e2b(
        "e2b_find_files", "GET", f"{_API}{_TEMPLATE}/files/{{hash}}", Scope.SESSIONS, "Where to upload files",
        action="e2b_build_template",
    ),
    _e2b(
        "e2b_upload_files", "PUT", f"{_API}/templates/uploads/{{hash}}", None, "Upload files of a build",
        reads=Reads.RAW,
    ),
    _e2b(
        "e2b_start_build", "POST", f"{_API}/v2{_BUILD}", Scope.SESSIONS, "Start a build", action="e2b_build_template"
    ),
    _e2b("e2b_get_build", "GET", f"{_API}{_BUILD}/status", Scope.READ, "How far a build is"),
    _e2b("e2b_get_build_logs", "GET", f"{_API}{_BUILD}/logs", Scope.READ, "What it said", action="e2b_get_build"),
    # -- the control plane: volumes, and what is in them
    _e2b("e2b_create_volume", "POST", f"{_API}/volumes", Scope.SESSIONS, "Make a volume", of_volume=True),
    _e2b("e2b_list_volumes", "GET", f"{_API}/volumes", Scope.READ, "List volumes"),
    _e2b("e2b_get_volume", "GET", f"{_API}/volumes/{{volume}}", Scope.READ, "Show a volume, get its token"),
    _e2b(
        "e2b_delete_volume", "DELETE", f"{_API}/volumes/{{volume}}", Scope.SESSIONS, "Delete a volume", of_volume=True
    ),
    _e2b("e2b_stat_in_volume", "GET", f"{_API}{_CONTENT}/path", Scope.READ, "Show an entry", of_volume=True),
    _e2b(
        "e2b_change_in_volume", "PATCH", f"{_API}{_CONTENT}/path", Scope.EXEC, "Change owner and mode", of_volume=True
    ),
    _e2b("e2b_remove_in_volume", "DELETE", f"{_API}{_CONTENT}/path", Scope.EXEC, "Remove an entry", of_volume=True),
    _e2b("e2b_list_in_volume", "GET", f"{_API}{_CONTENT}/dir", Scope.READ, "List a directory", of_volume=True),
    _e2b("e2b_mkdir_in_volume", "POST", f"{_API}{_CONTENT}/dir", Scope.EXEC, "Make a directory", of_volume=True),
    _e2b("e2b_read_in_volume", "GET", f"{_API}{_CONTENT}/file", Scope.READ, "Read a file", of_volume=True),
    _e2b(
        "e2b_write_in_volume", "PUT", f"{_API}{_CONTENT}/file", Scope.EXEC, "Write a file", reads=Reads.RAW,
        of_volume=True,
    ),
    # -- the control plane: what this server does not have
    *_unsupported("GET", "/events/sandboxes", _NO_EVENTS),
    *_unsupported("GET", "/events/sandboxes/{of_sandbox}", _NO_EVENTS),
    *_unsupported("GET POST", "/events/webhooks", _NO_EVENTS),
    *_unsupported("GET PATCH DELETE", "/events/webhooks/{webhook_id}", _NO_EVENTS),
    *_unsupported("POST GET", "/secrets", _NO_SECRETS),
    *_unsupported("GET POST DELETE", "/secrets/{secret_id}", _NO_SECRETS),
    # -- envd: commands and files of one sandbox
    _e2b("e2b_health", "GET", f"{_ENVD}/health", None, "Whether the sandbox runs"),
    _e2b("e2b_start_process", "POST", f"{_PROCESS_CALL}/Start", Scope.EXEC, "Start a command and read its output"),
    _e2b("e2b_connect_process", "POST", f"{_PROCESS_CALL}/Connect", Scope.EXEC, "Read the output of a command"),
    _e2b("e2b_list_processes", "POST", f"{_PROCESS_CALL}/List", Scope.READ, "List commands"),
    _e2b("e2b_signal_process", "POST", f"{_PROCESS_CALL}/SendSignal", Scope.EXEC, "Send a signal"),
    _e2b("e2b_send_input", "POST", f"{_PROCESS_CALL}/SendInput", Scope.EXEC, "Write to its standard input"),
    _e2b("e2b_close_stdin", "POST", f"{_PROCESS_CALL}/CloseStdin", Scope.EXEC, "Close its standard input"),
    _e2b("e2b_update_process", "POST", f"{_PROCESS_CALL}/Update", Scope.EXEC, "Change the size of its terminal"),
    _e2b(
        "e2b_stream_input", "POST", f"{_PROCESS_CALL}/StreamInput", Scope.EXEC, "Write as it comes", reads=Reads.RAW
    ),
    _e2b("e2b_read_file", "GET", f"{_ENVD}/files", Scope.READ, "Read a file"),
    _e2b("e2b_write_files", "POST", f"{_ENVD}/files", Scope.EXEC, "Write files", reads=Reads.RAW),
    _e2b("e2b_list_directory", "POST", f"{_FILE_CALL}/ListDir", Scope.READ, "List a directory"),
    _e2b("e2b_stat_entry", "POST", f"{_FILE_CALL}/Stat", Scope.READ, "Show an entry"),
    _e2b("e2b_make_directory", "POST", f"{_FILE_CALL}/MakeDir", Scope.EXEC, "Make a directory"),
    _e2b("e2b_move_entry", "POST", f"{_FILE_CALL}/Move", Scope.EXEC, "Move or rename"),
    _e2b("e2b_remove_entry", "POST", f"{_FILE_CALL}/Remove", Scope.EXEC, "Remove an entry"),
    _e2b("e2b_create_watcher", "POST", f"{_FILE_CALL}/CreateWatcher", Scope.READ, "Collect changes"),
    _e2b("e2b_get_watcher_events", "POST", f"{_FILE_CALL}/GetWatcherEvents", Scope.READ, "Take the changes"),
    _e2b("e2b_remove_watcher", "POST", f"{_FILE_CALL}/RemoveWatcher", Scope.READ, "Collect no more"),
    _e2b("e2b_watch_directory", "POST", f"{_FILE_CALL}/WatchDir", Scope.READ, "Watch for changes"),
    # -- the code interpreter of one sandbox
    _e2b("e2b_check_interpreter", "GET", f"{_INTERPRETER}/health", None, "Whether the sandbox runs"),
    _e2b("e2b_run_code", "POST", f"{_INTERPRETER}/execute", Scope.EXEC, "Run code"),
    _e2b("e2b_create_context", "POST", f"{_INTERPRETER}/contexts", Scope.EXEC, "Start a context"),
    _e2b("e2b_list_contexts", "GET", f"{_INTERPRETER}/contexts", Scope.READ, "List contexts"),
    _e2b(
        "e2b_restart_context", "POST", f"{_INTERPRETER}/contexts/{{context_id}}/restart", Scope.EXEC, "Restart one"
    ),
    _e2b("e2b_remove_context", "DELETE", f"{_INTERPRETER}/contexts/{{context_id}}", Scope.EXEC, "End one"),
)  # fmt: skip
E2B_OPERATIONS: Final = {row.name: row for row in _E2B_ROWS}


class _Place:
    """Where the walk along a path is after some of its parts. `rows` are those that end here, by method, each with
    the places of its parameters; `others` is where any part leads that `parts` does not name."""

    __slots__ = ("others", "parts", "rows")

    def __init__(self, rows: Sequence[tuple[list[str], Operation]], depth: int = 0) -> None:
        """A part that some row names literally leads also to where it would lead as a parameter: the walk never turns
        back. Of two rows for one request the one that names more literally, from the left, comes first."""
        self.rows: dict[str, tuple[Operation, tuple[tuple[int, str], ...]]] = {}
        here = [(parts, row) for parts, row in rows if len(parts) == depth]
        for parts, row in sorted(here, key=lambda each: [part.startswith("{") for part in each[0]], reverse=True):
            named = tuple((at, part[1:-1]) for at, part in enumerate(parts) if part.startswith("{"))
            self.rows[row.method] = row, named
        further = [(parts, row) for parts, row in rows if len(parts) > depth]
        free = [each for each in further if each[0][depth].startswith("{")]
        literal = {parts[depth] for parts, _ in further} - {parts[depth] for parts, _ in free}
        self.parts: Mapping[str, _Place] = {
            part: _Place([each for each in further if each[0][depth] == part] + free, depth + 1) for part in literal
        }
        self.others = _Place(free, depth + 1) if free else None


class OperationFinder:
    """Finds the operation of a request by its method and path. A WebSocket's method is WEBSOCKET."""

    def __init__(self, operations: Iterable[Operation] = (*_ROWS, *_E2B_ROWS)) -> None:
        self._root = _Place([(row.path.split("/"), row) for row in operations])

    def find(self, method: str, path: str) -> tuple[Operation, dict[str, str]] | None:
        """The operation and the parameters in the path. E2B's paths may end with a slash."""
        place = self._root
        parts = path.split("/")
        for part in parts:
            further = place.parts.get(part) or (place.others if part else None)
            if further is None:
                break
            place = further
        else:
            found = place.rows.get(method)
            if found is not None:
                values = {}
                for at, name in found[1]:
                    values[name] = parts[at]
                return found[0], values
        return self._find_without_slash(method, path) if parts[-1] == "" and len(path) > 1 else None

    def methods(self, path: str) -> list[str]:
        """Which methods of E2B's the path has, to refuse others."""
        methods = ("GET", "POST", "PUT", "PATCH", "DELETE")
        found = {method: self.find(method, path) for method in methods}
        return sorted(method for method, each in found.items() if each is not None and each[0].wire is Wire.E2B)

    def _find_without_slash(self, method: str, path: str) -> tuple[Operation, dict[str, str]] | None:
        shorter = path.rstrip("/")
        found = self.find(method, shorter)
        if found is None or found[0].wire is not Wire.E2B:
            return None
        is_plain = not found[0].names_in_path
        return found if is_plain or len(path) - len(shorter) == 1 else None


FINDER: Final = OperationFinder()
"""The one for all requests: the rows of both wires."""
