"""The clients of Warren under the name that the second version of their interface had.

What programs for that version call returns dictionaries, as it did there. All other methods are those of Warren's own
clients, with the results of those.
"""

import os
from collections.abc import Sequence
from typing import Any

try:
    import warren
except ModuleNotFoundError as exc:
    raise ImportError(f"{__name__} is Warren under another name: pip install warren-sandbox") from exc

__all__ = ["BatchSandboxClient", "SandboxClient"]


class SandboxClient(warren.SandboxClient):
    """Takes what Warren's own SandboxClient takes."""

    def create_session(self) -> dict[str, Any]:  # type: ignore[override]
        """Makes the session now, or finds it if it was made before: `status` is created or existing."""
        made = super().create_session()
        return {**made.to_dict(), "status": "created" if made.created else "existing"}

    def execute(  # type: ignore[override]
        self, command: str | Sequence[str], timeout: float | None = None, **options: Any
    ) -> dict[str, Any]:
        """Runs a command to its end: `exit_code`, `output`, and the other fields of warren.ExecuteResult."""
        return super().execute(command, timeout, **options).to_dict()

    def upload_file(  # type: ignore[override]
        self, local_path: str | os.PathLike[str], remote_path: str = "", **options: Any
    ) -> dict[str, Any]:
        """Copies a local file into the sandbox: `status`, `filename` (in the sandbox), `path`, `size` and more."""
        written = super().upload_file(local_path, remote_path, **options)
        return {**written.to_dict(), "status": "uploaded", "filename": written.name}

    def list_files(self, path: str = "/workspace", *, depth: int = 1) -> list[dict[str, Any]]:  # type: ignore[override]
        """Lists a directory: `path`, `name`, `kind`, `size` and more of each file."""
        return [each.to_dict() for each in super().list_files(path, depth=depth)]

    def cleanup(self) -> dict[str, Any]:  # type: ignore[override]
        """Ends the session and waits until its sandbox is gone. Succeeds if there is none."""
        super().cleanup()
        return {"status": "cleaned up"}


class BatchSandboxClient(warren.BatchSandboxClient):
    """Takes what Warren's own BatchSandboxClient takes."""

    def execute_batch(  # type: ignore[override]
        self, commands: Sequence[str | Sequence[str]], **options: Any
    ) -> list[dict[str, Any]]:
        """Runs the commands and returns their results in order, each as `SandboxClient.execute` does."""
        return [each.to_dict() for each in super().execute_batch(commands, **options)]
