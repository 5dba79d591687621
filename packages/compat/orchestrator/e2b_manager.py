"""Code, files and network of sandboxes, each named by its session: what a program does once a sandbox runs.

A session is named by its id (`ses_…`), or by the name of the caller's own that it was started with.
"""

import contextlib
import os
import posixpath
import re
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from orchestrator.state_manager import JsonFiles
from orchestrator.target import Target, choose_target
from warren import Execution, FileEntry, NetworkInfo, SandboxClient
from warren.model.errors import SessionNotFound
from warren.sdk.blocking.backend import Backend, find_session_of_thread
from warren.sdk.blocking.platform import open_backend

NAME: Final = "orchestrator_session"  # the metadata that has the name a session was started with
_SESSION: Final = re.compile(r"ses_[0-9a-f]{32}")
_WORKSPACE: Final = "/workspace"
_DEPTH: Final = 10
_STATUS: Final = re.compile("[0-9]{1,3}")
_BASH_STATUS: Final = "ExitCode"  # the error of bash code that ends with a status other than 0
_LANGUAGE_OF: Final = {"Node": "javascript"}  # by environment; of all others python
_MAX_ARTIFACTS: Final = 1000  # that are recorded of a session; the oldest make room


class E2BManager:
    """Works on the sandboxes of a server, or of this machine. What is downloaded goes to `storage_path`/artifacts."""

    def __init__(self, api_key: str | None = None, storage_path: str | os.PathLike[str] = "./storage") -> None:
        self._target = choose_target(api_key)
        self._backend = _open_backend(self._target)
        self._artifacts = JsonFiles(Path(storage_path) / "artifacts")
        # Programs that were written for this interface do not close it.
        self._closing = weakref.finalize(self, self._backend.close)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._backend!r}>"

    @property
    def mode(self) -> str:
        """remote: on a server. local: on this machine, in this process."""
        return self._target.mode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes connections. In local mode this ends the sandboxes that were started without a name."""
        self._closing()

    # -- code

    def execute_code(
        self,
        session_id: str,
        code: str,
        language: str = "",
        timeout: float | None = None,
        envs: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Runs code in the interpreter of its language, which keeps variables from one call to the next.

        Gives `stdout`, `stderr`, `results` (the value of the last expression, and what the code displayed),
        `artifacts`, `exit_code`, `reason`, `error`, `execution_count` and `context_id`. An error of the code is not
        raised. `language` is by default that of the environment: javascript in Node, else python. `artifacts` are the
        files of the workspace that are new or changed; `storage/artifacts` keeps a list of them.
        """
        sandbox = self._sandbox(session_id)
        language = language or _LANGUAGE_OF.get(sandbox.info().environment, "python")
        before = {_fingerprint(each) for each in sandbox.list_files(depth=_DEPTH)}
        done = sandbox.run_code(code, language, timeout=timeout, env=envs)
        made = [each for each in sandbox.list_files(depth=_DEPTH) if each.kind == "file"]
        artifacts = [dict(each) for each in made if _fingerprint(each) not in before]
        self._record(sandbox.session_id, artifacts)
        return {
            "stdout": "".join(done.logs.stdout),
            "stderr": "".join(done.logs.stderr) + _last_words(done),
            "results": [each.given() for each in done.results],
            "artifacts": artifacts,
            "exit_code": _exit_code(done),
            "reason": done.reason,
            "error": None if done.error is None else dict(done.error),
            "execution_count": done.execution_count,
            "context_id": done.context_id,
        }

    def artifacts(self, session_id: str) -> list[dict[str, Any]]:
        """The files that code of the session has made, as they were then; after its end it is named by its id."""
        with contextlib.suppress(SessionNotFound):
            session_id = self.find(session_id)
        found = self._artifacts.load(session_id) or {}
        return list(found.get("artifacts", []))

    def _record(self, session_id: str, made: Sequence[dict[str, Any]]) -> None:
        if not made:
            return
        paths = {each["path"] for each in made}

        def add(known: dict[str, Any]) -> dict[str, Any]:
            kept = [each for each in known.get("artifacts", []) if each["path"] not in paths]
            return {"artifacts": [*kept, *made][-_MAX_ARTIFACTS:]}

        self._artifacts.change(session_id, add)

    # -- files

    def upload(self, session_id: str, local_path: str | os.PathLike[str], remote_path: str = "") -> dict[str, Any]:
        """Copies a file of this machine into the sandbox; by default under its own name in the workspace."""
        return dict(self._sandbox(session_id).upload_file(local_path, remote_path))

    def download(self, session_id: str, remote_path: str, local_path: str | os.PathLike[str] = "") -> Path:
        """Copies a file of the sandbox to this machine; by default to `storage/artifacts/SESSION/PATH`."""
        sandbox = self._sandbox(session_id)
        if not local_path:
            whole = posixpath.normpath(posixpath.join(_WORKSPACE, remote_path))
            local_path = self._artifacts.directory / sandbox.session_id / whole.removeprefix(_WORKSPACE).lstrip("/")
            local_path.parent.mkdir(parents=True, exist_ok=True)
        return sandbox.download_file(remote_path, local_path)

    def list_files(self, session_id: str, path: str = _WORKSPACE, depth: int = 1) -> list[dict[str, Any]]:
        return [dict(each) for each in self._sandbox(session_id).list_files(path, depth=depth)]

    def read_file(self, session_id: str, path: str) -> bytes:
        return self._sandbox(session_id).read_file(path)

    def write_file(self, session_id: str, path: str, data: str | bytes) -> dict[str, Any]:
        return dict(self._sandbox(session_id).write_file(path, data))

    def delete_file(self, session_id: str, path: str, *, recursive: bool = False) -> None:
        self._sandbox(session_id).remove(path, recursive=recursive)

    # -- network

    def network(self, session_id: str) -> NetworkInfo:
        """What the sandbox may reach, and what it has reached."""
        return self._sandbox(session_id).network()

    def set_network(
        self, session_id: str, *, internet: bool = False, allow: Sequence[str] = (), deny: Sequence[str] = ()
    ) -> NetworkInfo:
        """Replaces what the sandbox may reach; without arguments it reaches nothing any more."""
        return self._sandbox(session_id).set_network(internet=internet, allow=allow, deny=deny)

    # -- sessions

    def find(self, session_id: str) -> str:
        """The id of a session, given that or the name that it was started with. Of several with a name, by several
        providers, it is the newest; a thread's id names its session as well."""
        if _SESSION.fullmatch(session_id):
            return session_id
        named: list[dict[str, Any]] = []
        if session_id:
            named = self._backend.call("list_sessions", metadata=[f"{NAME}={session_id}"], limit=1)["sessions"]
        found = named[0] if named else find_session_of_thread(self._backend, session_id) if session_id else None
        if found is None:
            raise SessionNotFound(f"there is no session {session_id[:80]!r}", remedy="start one: start_sandbox")
        return str(found["session_id"])

    def _sandbox(self, session_id: str) -> SandboxClient:
        return SandboxClient(session_id=self.find(session_id), backend=self._backend)


def _open_backend(target: Target) -> Backend:
    if target.mode == "remote":
        return open_backend("remote", "", target.api_key)
    from warren.local import Local

    return Local(target.e2b_api_key)


def _exit_code(execution: Execution) -> int:
    error = execution.error
    if error is None:
        return 0
    is_status = execution.language == "bash" and error.name == _BASH_STATUS and _STATUS.fullmatch(error.value)
    return int(error.value) if is_status else 1


def _last_words(execution: Execution) -> str:
    """The error as a program shows it when it ends."""
    error = execution.error
    if error is None or (execution.language == "bash" and error.name == _BASH_STATUS):
        return ""
    trace = error.traceback.rstrip()
    return f"{trace}\n" if error.name in trace else f"{trace}\n{error}\n".lstrip()


def _fingerprint(entry: FileEntry) -> tuple[str, int, str]:
    return entry.path, entry.size, entry.modified
