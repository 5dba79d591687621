"""Other ways to run a command in a container, for bench/service.py: docker exec, llm-sandbox, swe-rex.

The two packages are installed from the package index into a virtual environment of their own, build/bench-rivals; each
runs there as a process that reads a number per line, runs that many commands and prints how long each took. They run
in the network namespace of the Docker engine, where swe-rex reaches its server in the container.
"""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from docker_engine import DockerEngine  # noqa: E402

IMAGE = "warren-bench:latest"
VENV = ROOT / "build" / "bench-rivals"
_ROOTFS = ROOT / "build" / "test-state" / "images" / "base" / "rootfs"
_INSTALL_S = 600
_PORT = 8000

_LLM_SANDBOX = f"""
import docker, json, sys, time
from llm_sandbox import SandboxSession
client = docker.DockerClient(base_url=sys.argv[1])
with SandboxSession(client=client, image="{IMAGE}", lang="python", skip_environment_setup=True, keep_template=True,
                    runtime_configs={{"network_mode": "none", "command": "sleep 10000"}}) as session:
    for line in sys.stdin:
        taken = []
        for _ in range(int(line)):
            start = time.perf_counter()
            outcome = session.execute_command("true")
            taken.append(time.perf_counter() - start)
            assert outcome.exit_code == 0, outcome
        print("TOOK", json.dumps(taken), flush=True)
"""

_SWE_REX = f"""
import asyncio, json, sys, time
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
from swerex.runtime.remote import RemoteRuntime

async def main():
    runtime = RemoteRuntime(host="http://127.0.0.1", port={_PORT}, auth_token="bench")
    await runtime.wait_until_alive(timeout=60)
    await runtime.create_session(CreateBashSessionRequest())
    while line := await asyncio.to_thread(sys.stdin.readline):
        taken = []
        for _ in range(int(line)):
            start = time.perf_counter()
            outcome = await runtime.run_in_session(BashAction(command="true"))
            taken.append(time.perf_counter() - start)
            assert outcome.exit_code == 0, outcome
        print("TOOK", json.dumps(taken), flush=True)

asyncio.run(main())
"""


@dataclass
class Rival:
    """Another way to run commands. `batch` returns the seconds that each command took; `problem` says why it cannot
    run.

    `bare` means that it runs the program itself, without a shell.
    """

    name: str
    bare: bool = False
    problem: str = ""
    process: "subprocess.Popen[str] | None" = None
    argv: tuple[str, ...] = ()

    def batch(self, times: int) -> list[float]:
        if self.problem:
            return []
        if self.process is None:
            return [_time_command(self.argv) for _ in range(times)]
        try:
            assert self.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its last output explains more
                self.process.stdin.write(f"{times}\n")
                self.process.stdin.flush()
            return self._read_times()
        except ValueError as exc:
            self.problem = str(exc)
            return []

    def _read_times(self) -> list[float]:
        assert self.process is not None
        assert self.process.stdout is not None
        last_line = ""
        for line in self.process.stdout:
            if line.startswith("TOOK "):
                return list(json.loads(line.removeprefix("TOOK ")))
            last_line = line.strip() or last_line
        raise ValueError(last_line or "it ended without output")


def _time_command(argv: tuple[str, ...]) -> float:
    start = time.perf_counter()
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return time.perf_counter() - start


@contextlib.contextmanager
def rivals() -> Iterator[list[Rival]]:
    """Starts the rivals. Those that cannot be started have a `problem`."""
    engine = DockerEngine()
    found = [Rival("docker exec true", bare=True), Rival("llm-sandbox, `true`", bare=True), Rival("swe-rex, `true`")]
    try:
        problem = _start(engine)
        for rival in found:
            rival.problem = problem
        if not problem:
            found[0].argv = _exec_argv(engine)
            _start_packages(engine, found[1], found[2])
        yield found
    finally:
        for rival in found:
            _end(rival)
        engine.close()


def _start(engine: DockerEngine) -> str:
    if shutil.which("dockerd") is None:
        return "there is no dockerd"
    try:
        engine.start()
        engine.import_rootfs(_ROOTFS, IMAGE)
    except (RuntimeError, OSError, subprocess.CalledProcessError) as exc:
        return str(exc).splitlines()[-1]
    return ""


def _exec_argv(engine: DockerEngine) -> tuple[str, ...]:
    engine.docker("run", "--detach", "--name", "bench", "--network", "none", IMAGE, "sleep", "10000")
    return ("docker", "--host", engine.url, "exec", "bench", "true")


def _start_packages(engine: DockerEngine, llm_sandbox: Rival, swe_rex: Rival) -> None:
    problem = _install()
    if problem:
        llm_sandbox.problem = swe_rex.problem = problem
        return
    python, inside = str(VENV / "bin" / "python"), _enter(engine)
    llm_sandbox.process = _spawn([python, "-c", _LLM_SANDBOX, engine.url])
    subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=False, capture_output=True)
    packages = next((VENV / "lib").glob("python3*")) / "site-packages"
    started = engine.docker(
        *("run", "--detach", "--network", "host", "--volume", f"{packages}:/opt/rex:ro"),
        *("--env", "PYTHONPATH=/opt/rex", "--env", "HOME=/tmp", IMAGE),
        *("python3", "-m", "swerex.server", "--auth-token", "bench", "--port", str(_PORT)),
        check=False,
    )
    swe_rex.problem = "" if started.returncode == 0 else started.stderr.strip().splitlines()[-1]
    swe_rex.process = None if swe_rex.problem else _spawn([*inside, python, "-c", _SWE_REX])


def _install() -> str:
    """Installs both packages into their environment, once. Returns the problem, if there is one."""
    if (VENV / ".installed").exists():
        return ""
    commands = (
        [sys.executable, "-m", "venv", str(VENV)],
        [str(VENV / "bin" / "pip"), "install", "--quiet", "swe-rex", "aiohttp", "llm-sandbox[docker]"],
    )
    for command in commands:
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S)
        if outcome.returncode:
            return f"pip: {(outcome.stderr.strip() or 'failed').splitlines()[-1]}"
    (VENV / ".installed").touch()
    return ""


def _enter(engine: DockerEngine) -> list[str]:
    pid = (engine.root / "docker.pid").read_text().strip()
    return ["nsenter", "--target", pid, "--net", "--"]


def _spawn(argv: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def _end(rival: Rival) -> None:
    if rival.process is None:
        return
    assert rival.process.stdin is not None
    with contextlib.suppress(OSError):
        rival.process.stdin.close()
    try:
        rival.process.wait(30)
    except subprocess.TimeoutExpired:
        rival.process.kill()
        rival.process.wait()
    assert rival.process.stdout is not None
    rival.process.stdout.close()
