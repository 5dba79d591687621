"""The real `warren` command against a real server, for the tests of the command line."""

import json
import os
import subprocess
import sys
from typing import Any

import warm_parent

Done = subprocess.CompletedProcess[bytes]


class RemoteCli:
    """Runs `warren` as a user who has WARREN_URL set."""

    def __init__(self, url: str, **environ: str) -> None:
        self.url = url
        self.environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": ":".join(sys.path),
            "WARREN_URL": url,
            "WARREN_CONFIG": "/dev/null",
            "TERM": "xterm",
            **environ,
        }

    @staticmethod
    def argv(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "warren.cli.main", *arguments]

    def run(self, *arguments: str, stdin: bytes = b"", cwd: str = "/") -> Done:
        return warm_parent.run(
            self.argv(*arguments), input=stdin, capture_output=True, env=self.environ, timeout=100, cwd=cwd
        )

    def say(self, *arguments: str, stdin: bytes = b"", cwd: str = "/") -> str:
        """What it prints, when it must succeed."""
        done = self.run(*arguments, stdin=stdin, cwd=cwd)
        assert (done.returncode, done.stderr) == (0, b""), done
        return done.stdout.decode()

    def document(self, *arguments: str) -> Any:
        return json.loads(self.say(*arguments, "--json"))

    def start(self, *arguments: str, **streams: int) -> "subprocess.Popen[bytes]":
        return warm_parent.Popen(self.argv(*arguments), env=self.environ, **streams)  # type: ignore[call-overload,no-any-return]
