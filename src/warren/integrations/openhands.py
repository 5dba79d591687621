"""Warren as a workspace of the OpenHands SDK: `with WarrenWorkspace() as workspace`.

The workspace has a session of its own, which ends with it, or works in one that exists (`session_id=`). OpenHands runs
its own tools where the conversation runs; `workspace.terminal()` is one whose commands run in the sandbox.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Self, Unpack
from weakref import WeakValueDictionary

from warren.integrations.extras import missing_package

try:
    from openhands.sdk.git.exceptions import GitCommandError, GitPathError, GitRepositoryError
    from openhands.sdk.git.models import GitChange, GitChangeStatus, GitDiff
    from openhands.sdk.llm import TextContent
    from openhands.sdk.tool import Action, Observation, Tool, ToolDefinition, ToolExecutor, register_tool
    from openhands.sdk.workspace import BaseWorkspace, CommandResult, FileOperationResult
    from pydantic import Field, PrivateAttr
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "openhands") from None

from warren.integrations.reports import EXIT_NOT_RUN, describe_command, describe_error
from warren.model.errors import FileNotFound, NotADirectory, WarrenError
from warren.model.operations import MAX_KEEP_BYTES
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.options import SandboxOptions

_TIMED_OUT: Final = -1
"""What OpenHands has as the exit code of a command that took too long."""
_EMPTY_TREE: Final = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_MAX_DIFF_BYTES: Final = 1024 * 1024
_MAX_CHARS: Final = 30_000
_STATUSES: Final = {
    "A": GitChangeStatus.ADDED,
    "D": GitChangeStatus.DELETED,
    "M": GitChangeStatus.UPDATED,
    "T": GitChangeStatus.UPDATED,
    "U": GitChangeStatus.UPDATED,
}
_BASE: Final = f"""
git rev-parse -q --verify HEAD >/dev/null || {{ echo {_EMPTY_TREE}; exit; }}
git merge-base HEAD origin/HEAD 2>/dev/null || git merge-base HEAD '@{{upstream}}' 2>/dev/null || git rev-parse HEAD
"""


class WarrenWorkspace(BaseWorkspace):
    """One session of Warren. `options` are those of SandboxClient."""

    _client: SandboxClient = PrivateAttr()

    def __init__(
        self,
        working_dir: str | Path = "/workspace",
        *,
        server_url: str = "",
        session_id: str = "",
        **options: Unpack[SandboxOptions],
    ) -> None:
        super().__init__(working_dir=str(working_dir))
        self._client = SandboxClient(server_url, session_id=session_id, **options)

    @property
    def client(self) -> SandboxClient:
        """For what OpenHands does not know: ports, snapshots, the network."""
        return self._client

    def __enter__(self) -> Self:
        self._client.__enter__()
        return self

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        try:
            self._send_completion_callback(exc_type, exc_val)
        finally:
            self._client.__exit__(exc_type, exc_val, exc_tb)

    def execute_command(self, command: str, cwd: str | Path | None = None, timeout: float = 30.0) -> CommandResult:
        how: dict[str, Any] = {"cwd": self._path(cwd or ""), "carry_state": False, "keep_bytes": MAX_KEEP_BYTES}
        try:
            result = self._client.execute(command, timeout, **how)
        except WarrenError as exc:
            stderr, code, is_late = describe_error(exc), EXIT_NOT_RUN, False
            return CommandResult(command=command, exit_code=code, stdout="", stderr=stderr, timeout_occurred=is_late)
        is_late = result.reason == "timeout"
        report = describe_command(result, timeout, None)
        return CommandResult(
            command=command,
            exit_code=_TIMED_OUT if is_late else report.exit_code,
            stdout=result.stdout,
            stderr=result.stderr + report.text.removeprefix(result.output),
            timeout_occurred=is_late,
        )

    def file_upload(self, source_path: str | Path, destination_path: str | Path) -> FileOperationResult:
        paths = {"source_path": str(source_path), "destination_path": str(destination_path)}
        try:
            mode = Path(source_path).stat().st_mode & 0o777
            written = self._client.upload_file(source_path, self._path(destination_path), mode=mode)
        except (WarrenError, OSError) as exc:
            return FileOperationResult(success=False, error=str(exc), **paths)
        return FileOperationResult(success=True, file_size=written.size, **paths)

    def file_download(self, source_path: str | Path, destination_path: str | Path) -> FileOperationResult:
        paths = {"source_path": str(source_path), "destination_path": str(destination_path)}
        try:
            Path(destination_path).parent.mkdir(parents=True, exist_ok=True)
            written = self._client.download_file(self._path(source_path), destination_path)
        except (WarrenError, OSError) as exc:
            return FileOperationResult(success=False, error=str(exc), **paths)
        return FileOperationResult(success=True, file_size=written.stat().st_size, **paths)

    def git_changes(self, path: str | Path) -> list[GitChange]:
        """Returns what is new since the branch left the remote's default branch or its upstream, or the last commit."""
        folder = self._path(path)
        base = self._base(folder)
        changed = self._git(folder, "diff", "--name-status", "-z", "--no-renames", "--relative", base).split("\0")[:-1]
        new = self._git(folder, "ls-files", "--others", "--exclude-standard", "-z").split("\0")[:-1]
        pairs = zip(changed[::2], changed[1::2], strict=True)
        found = [GitChange(status=_STATUSES[status], path=Path(name)) for status, name in pairs]
        return found + [GitChange(status=GitChangeStatus.ADDED, path=Path(name)) for name in new]

    def git_diff(self, path: str | Path) -> GitDiff:
        file = Path(self._path(path))
        base = self._base(str(file.parent))
        try:
            data = self._client.read_file(str(file), length=_MAX_DIFF_BYTES + 1)
        except (FileNotFound, NotADirectory):
            data = None
        except WarrenError as exc:
            raise GitPathError(f"{file}: {exc}") from exc
        if data is not None and len(data) > _MAX_DIFF_BYTES:
            raise GitPathError(f"{file} is too large for a diff: it may have {_MAX_DIFF_BYTES} bytes")
        try:
            original = self._git(str(file.parent), "show", f"{base}:./{file.name}")
        except GitCommandError:
            if data is None:
                raise GitPathError(f"there is no file {file}") from None
            original = ""
        lines = (data or b"").decode(errors="replace").splitlines()
        return GitDiff(modified="\n".join(lines), original="\n".join(original.splitlines()))

    def pause(self) -> None:
        self._client.pause()

    def resume(self) -> None:
        self._client.resume()

    def terminal(self) -> Tool:
        """Returns a tool for an agent, by which it runs commands here while the workspace is open."""
        session_id = self._client.create_session().session_id
        _open[session_id] = self
        return Tool(name=WarrenTerminalTool.name, params={"session_id": session_id})

    def _path(self, path: str | Path) -> str:
        return str(Path(self.working_dir) / path)

    def _base(self, folder: str) -> str:
        if self.execute_command("git rev-parse --git-dir", folder).exit_code:
            raise GitRepositoryError(f"{folder} is not in a git repository")
        base: str = self.execute_command(_BASE, folder).stdout.strip()
        return base

    def _git(self, folder: str, *arguments: str) -> str:
        argv = ["git", "--no-pager", *arguments]
        result = self._client.execute(argv, 60.0, cwd=folder, carry_state=False, keep_bytes=MAX_KEEP_BYTES)
        if not result.ok:
            complaint = f"git {arguments[0]} failed in {folder}"
            raise GitCommandError(message=complaint, command=argv, exit_code=result.exit_code, stderr=result.stderr)
        return result.stdout


_open: Final[WeakValueDictionary[str, WarrenWorkspace]] = WeakValueDictionary()
"""The workspaces of this program, by their sessions: a tool is named in a file, where no object can be."""


class WarrenTerminalAction(Action):
    command: str = Field(description="A line for bash. It starts in the directory of the line before.")
    timeout: float = Field(default=120.0, description="Seconds after which it is stopped.")


class WarrenTerminalObservation(Observation):
    exit_code: int = 0


class _Terminal(ToolExecutor[WarrenTerminalAction, WarrenTerminalObservation]):
    def __init__(self, client: SandboxClient) -> None:
        self._client = client

    def __call__(self, action: WarrenTerminalAction, conversation: Any = None) -> WarrenTerminalObservation:
        try:
            result = self._client.execute(action.command, action.timeout)
        except WarrenError as exc:
            return _observation(describe_error(exc), EXIT_NOT_RUN, is_error=True)
        report = describe_command(result, action.timeout, _MAX_CHARS)
        return _observation(report.to_text(), report.exit_code)


def _observation(text: str, exit_code: int, *, is_error: bool = False) -> WarrenTerminalObservation:
    return WarrenTerminalObservation(content=[TextContent(text=text)], is_error=is_error, exit_code=exit_code)


class WarrenTerminalTool(ToolDefinition[WarrenTerminalAction, WarrenTerminalObservation]):
    """Runs commands in the sandbox of a workspace, which `params` names by its session."""

    user_selectable: ClassVar[bool] = False

    @classmethod
    def create(cls, conv_state: Any = None, **params: Any) -> Sequence[Self]:
        workspace = _open.get(session_id := params["session_id"])
        if workspace is None:
            raise ValueError(f"no workspace of this program has {session_id}: call its terminal() first")
        description = "Runs a line of bash in an isolated Linux sandbox. Files, directory and variables stay."
        return [
            cls(
                description=description,
                action_type=WarrenTerminalAction,
                observation_type=WarrenTerminalObservation,
                executor=_Terminal(workspace.client),
            )
        ]


register_tool(WarrenTerminalTool.name, WarrenTerminalTool)
