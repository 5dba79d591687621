"""A real Prometheus of the test's own, on loopback."""

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from server_process import free_port
from this_run import patience

_START_S = patience(60.0)
_TOGETHER = ("setpriv", "--pdeathsig", "KILL")  # so that it never outlives the tests


class Prometheus:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **query: str) -> Any:
        place = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(place, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as exc:
            raise AssertionError(f"{query}: {exc.read().decode()}") from exc

    def values(self, expression: str) -> list[float]:
        """Returns the current values of an expression, without NaN."""
        found = (float(each["value"][1]) for each in self.ask("query", query=expression)["result"])
        return [value for value in found if value == value]


@contextlib.contextmanager
def running_prometheus(config: Path, data: Path) -> Iterator[Prometheus]:
    port = free_port()
    flags = [f"--config.file={config}", f"--storage.tsdb.path={data}", f"--web.listen-address=127.0.0.1:{port}"]
    log_path = config.with_suffix(".log")
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*_TOGETHER, "prometheus", *flags, "--log.level=warn"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5):
                break
            assert process.poll() is None, log_path.read_text()
            assert time.monotonic() < deadline, log_path.read_text()
            time.sleep(0.05)
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(_START_S)
