"""What the tests see of sandboxes from the host: their directories, and the process that is the agent of each."""

import json
import os
import signal
from pathlib import Path

from warren.sandboxes.host.processes import start_time
from warren.sandboxes.host.record import NAME


class Hosts:
    """The state directories of the servers under test; `folder` is where the provider has its sandboxes."""

    def __init__(self, *state_dirs: Path, folder: str = "sandboxes") -> None:
        self._folders = [state / folder for state in state_dirs]

    def has(self, sandbox_id: str) -> bool:
        return any(os.path.lexists(path) for path in self._places(sandbox_id))

    def lose(self, sandbox_id: str) -> None:
        """The sandbox dies: its first process is killed."""
        [record] = [path / NAME for path in self._places(sandbox_id) if path.exists()]
        values = json.loads(record.read_text())
        assert start_time(values["pid"]) == values["start_time"]
        os.kill(values["pid"], signal.SIGKILL)

    def sandboxes(self) -> set[str]:
        return {path.name for folder in self._folders for path in folder.glob("*")}

    def _places(self, sandbox_id: str) -> list[Path]:
        return [folder / sandbox_id for folder in self._folders]
