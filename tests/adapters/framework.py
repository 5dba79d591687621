"""A framework in an environment of its own, which `make adapters` makes from newest.txt or oldest.txt of its folder."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from server_process import ServerProcess
from this_run import patience

from warren import SandboxClient

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "examples" / "adapters"
VERSIONS: Final = ("newest", "oldest")
KEY: Final = "wk_" + "k" * 40
_LONGEST_S: Final = 180.0
_MYPY: Final = """
[mypy]
strict = true
plugins = pydantic.mypy
follow_imports = silent

[mypy-harbor.*]
ignore_missing_imports = true

[mypy-warren.integrations.harbor]
disallow_subclassing_any = false

[mypy-smolagents.*]
ignore_missing_imports = true

[mypy-yaml.*]
ignore_missing_imports = true
"""


@dataclass(frozen=True)
class Framework:
    """`folder`: where its programs run."""

    name: str
    version: str
    server: ServerProcess
    folder: Path

    @property
    def bin(self) -> Path:
        return ROOT / "build" / "adapters" / self.name / self.version / "bin"

    def run(self, program: Path | str, *arguments: str) -> str:
        """Runs a program of tests/adapters, or of another place; returns what it has printed."""
        return self._finish(self.start(program, *arguments))

    def start(self, program: Path | str, *arguments: str) -> "subprocess.Popen[str]":
        return self._start([str(self.bin / "python"), str(Path(__file__).parent / self.name / program), *arguments])

    def run_program(self, name: str, *arguments: str) -> str:
        """Runs a command that the framework has installed."""
        return self._finish(self._start([str(self.bin / name), *arguments]))

    def sessions(self) -> list[str]:
        found = SandboxClient.list_sessions(self.server.url, api_key=KEY)
        return [session.session_id for session in found]

    def check_types(self, module: str) -> None:
        config = self.folder / "mypy.ini"
        config.write_text(_MYPY)
        argv = [sys.executable, "-m", "mypy", "--config-file", str(config), "--python-executable", self.bin / "python"]
        done = subprocess.run([*argv, "-m", module], cwd=ROOT / "src", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def _start(self, argv: list[str]) -> "subprocess.Popen[str]":
        environ = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "WARREN_URL": self.server.url,
            "WARREN_API_KEY": KEY,
            "WARREN_STATE_DIR": str(self.server.state_dir),  # of the machine, for what only its operator does
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else several frameworks look for prices on the internet
        }
        return subprocess.Popen(
            argv, cwd=self.folder, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    @staticmethod
    def wait(running: "subprocess.Popen[str]") -> None:
        running.communicate(timeout=patience(60))

    @staticmethod
    def _finish(running: "subprocess.Popen[str]") -> str:
        try:
            said, complained = running.communicate(timeout=patience(_LONGEST_S))
        finally:
            running.kill()
        assert running.returncode == 0, said[-3000:] + complained[-3000:]
        return said


def until(is_so: Callable[[], bool], running: "subprocess.Popen[str] | None" = None) -> None:
    """Waits; fails if the program ends meanwhile."""
    deadline = time.monotonic() + patience(60)
    while not is_so():
        assert time.monotonic() < deadline
        assert running is None or running.poll() is None, running.communicate()
        time.sleep(0.2)
