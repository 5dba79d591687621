"""Warren as an environment of Harbor: `harbor run -e warren.integrations.harbor:WarrenEnvironment`.

Each trial has a session of its own, in a sandbox of the task's image. Its Dockerfile is built by `warren image build`,
which has to run on the server's machine; an image that is there is not built again. Harbor works as root, so
`--ek environment=NAME` names an environment that allows it. Other arguments of `--ek` are options of the client.
"""

import asyncio
import contextlib
import inspect
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any, ClassVar, Final

from warren.integrations.extras import missing_package

try:
    from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
    from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
    from harbor.environments.definition import SNAPSHOT_HASH_LEN, should_use_prebuilt_docker_image
    from harbor.models.task.config import NetworkMode, NetworkPolicy
except ModuleNotFoundError as exc:
    raise missing_package(exc, __name__, "harbor") from None

from warren.integrations.framework_errors import file_errors
from warren.model.errors import SandboxLost
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.options import SandboxOptions
from warren.sdk.results import ExecuteResult

_BUILD: Final = "warren image build"
_DAY_S: Final = 24 * 3600.0
_TAIL: Final = 3000
_ROOT: Final = "root"
_OPTIONS: Final = SandboxOptions.__annotations__.keys() - {"image", "network", "env"}


class WarrenEnvironment(BaseEnvironment):
    """`build_command` is given the name of an image and a directory; an empty one builds nothing."""

    _building: ClassVar[dict[str, asyncio.Lock]] = {}

    def __init__(self, *args: Any, server_url: str = "", build_command: str = _BUILD, **kwargs: Any) -> None:
        self._server_url, self._build_command = server_url, build_command
        self._options = {name: kwargs.pop(name) for name in _OPTIONS & kwargs.keys()}
        if unknown := kwargs.keys() - inspect.signature(BaseEnvironment.__init__).parameters.keys():
            raise TypeError(f"an environment of Warren has no argument {', '.join(sorted(unknown))}")
        self._client: AsyncSandboxClient | None = None
        super().__init__(*args, **kwargs)
        self._user, self._workdir = _last_stage(self.environment_dir / "Dockerfile")

    @staticmethod
    def type() -> str:
        return "warren"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            gpus=True,
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv4_cidrs=True,
            dynamic_network_policy=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    def _validate_definition(self) -> None:
        if not self.task_env_config.docker_image and not (self.environment_dir / "Dockerfile").exists():
            raise FileNotFoundError(
                f"{self.environment_dir} has no Dockerfile, and the task names no docker_image; "
                "docker-compose.yaml is not for Warren, where a sandbox is one machine"
            )

    # -- life

    async def start(self, force_build: bool) -> None:
        image = await self._image(force_build)
        self._client = client = AsyncSandboxClient(self._server_url, **self._session_options(image))
        try:
            session_id = (await client.create_session()).session_id
            self.logger.info(f"working in the session {session_id} of Warren")
            if workdir := self.task_env_config.workdir:  # commands begin there, so it must be there
                await client.execute(["mkdir", "-p", workdir], cwd="/", user=_ROOT, carry_state=False)
            await self.ensure_dirs(self._mount_targets(writable_only=True))
            await self._upload_environment_dir_after_start()
        except BaseException:
            await self.stop(delete=True)
            raise

    def _session_options(self, image: str) -> dict[str, Any]:
        config = self.task_env_config
        asked = {"cpus": self._effective_cpus, "memory_mb": self._effective_memory_mb, "disk_mb": config.storage_mb}
        limits = {**{name: value for name, value in asked.items() if value}, **(self._options.get("limits") or {})}
        marks = {"harbor_environment": self.environment_name[:200], "harbor_session": self.session_id[:200]}
        return {
            "max_lifetime_s": _DAY_S,
            "idle_timeout_s": _DAY_S,
            "gpus": self._effective_gpus or None,
            **self._options,
            "image": image,
            "limits": limits,
            "env": self._startup_env(),
            "network": _rules(self.network_policy),
            "metadata": {**(self._options.get("metadata") or {}), **marks},
        }

    async def stop(self, delete: bool) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        if delete:
            await client.leave()
        else:
            self.logger.info(f"left as it is: `warren shell --user root {client.session_id}`")
            await client.close()

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        await self._running.set_network(_rules(network_policy))

    @property
    def _running(self) -> AsyncSandboxClient:
        if self._client is None:
            raise RuntimeError("Sandbox not found. Please start the environment first.")
        return self._client

    # -- the image

    async def _image(self, force_build: bool) -> str:
        docker_image = self.task_env_config.docker_image
        if docker_image and should_use_prebuilt_docker_image(
            self.environment_dir, docker_image=docker_image, force_build=force_build
        ):
            return str(docker_image)
        slug = re.sub(r"[^a-z0-9]+", "-", self.environment_name.lower()).strip("-")[:40]
        name = f"harbor-{slug}-{self.environment_id[:SNAPSHOT_HASH_LEN]}"
        async with self._building.setdefault(name, asyncio.Lock()):
            server = {"mode": self._options.get("mode", "remote"), "api_key": self._options.get("api_key")}
            images = await AsyncSandboxClient.list_images(self._server_url, **server)
            if force_build or all(each.name != name for each in images):
                await self._build(name)
        return name

    async def _build(self, name: str) -> None:
        argv = [*shlex.split(self._build_command), name, str(self.environment_dir.resolve())]
        said = "there is no build_command"
        if self._build_command:
            self.logger.info(f"building: {shlex.join(argv)}")
            try:
                said = await _output(argv)
                return
            except (OSError, ChildProcessError) as exc:
                said = str(exc)
        raise SandboxBuildFailedError(
            f"{said}\nOn the machine of the server: warren image build {shlex.join(argv[-2:])}"
        )

    # -- commands

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        resolved = self._resolve_user(user)
        how: dict[str, Any] = {
            "cwd": cwd or self.task_env_config.workdir or self._workdir,
            "env": self._merge_env(env),
            "user": str(resolved) if resolved is not None else self._user,
            "carry_state": False,
        }
        argv, emit = ["bash", "-c", command], self._output_callback()
        results: list[ExecuteResult] = []
        client = self._running
        if emit is None:
            result = await client.execute(argv, timeout_sec or 0, **how)
            stdout, stderr = result.stdout, result.stderr
        else:
            written: dict[str, list[str]] = {"stdout": [], "stderr": []}
            chunks = client.stream(argv, timeout_sec or 0, on_result=results.append, **how)
            async with contextlib.aclosing(chunks):
                async for chunk in chunks:
                    written[chunk.stream].append(chunk.text)
                    await emit(chunk.text, "stderr" if chunk.stream == "stderr" else "stdout")
            [result] = results
            stdout, stderr = ("".join(written[name]) for name in ("stdout", "stderr"))
        _check_end(result, timeout_sec)
        return ExecResult(stdout=stdout, stderr=stderr, return_code=result.exit_code)

    async def attach(self) -> None:
        os.execvp("warren", ["warren", "shell", "--user", self._user, self._running.session_id])

    # -- files

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        with file_errors(target_path):
            await self._running.upload_file(source_path, target_path, user=_ROOT)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        with file_errors(target_dir):
            await self._running.upload_dir(source_dir, target_dir, user=_ROOT)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        with file_errors(source_path):
            await self._running.download_file(source_path, target_path, user=_ROOT)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        Path(target_dir).mkdir(parents=True, exist_ok=True)
        with file_errors(source_dir):
            await self._running.download_dir(source_dir, target_dir, user=_ROOT)


async def _output(argv: list[str]) -> str:
    """Runs a program of this machine. One whose caller is cancelled is interrupted, and cleans up behind itself."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        await process.wait()
        raise
    text = output.decode(errors="replace")
    if process.returncode != 0:
        raise ChildProcessError(f"{shlex.join(argv)} has ended with {process.returncode}: {text[-_TAIL:]}")
    return text


def _rules(policy: NetworkPolicy) -> dict[str, Any]:
    if policy.network_mode == NetworkMode.PUBLIC:
        return {"internet": True}
    return {"allow": list(policy.allowed_hosts) if policy.network_mode == NetworkMode.ALLOWLIST else []}


def _last_stage(dockerfile: Path) -> tuple[str, str]:
    """Returns the user and the directory that the last stage of a Dockerfile has set. As with Docker that is root."""
    user, workdir = _ROOT, ""
    for line in dockerfile.read_text().splitlines() if dockerfile.exists() else ():
        instruction, _, value = line.strip().partition(" ")
        if instruction.upper() == "FROM":
            user, workdir = _ROOT, ""
        elif instruction.upper() == "USER":
            user = value.strip().partition(":")[0]
        elif instruction.upper() == "WORKDIR":
            workdir = os.path.join(workdir or "/", value.strip())
    return user, workdir


def _check_end(result: ExecuteResult, timeout_sec: int | None) -> None:
    if result.reason == "timeout":
        raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
    if result.reason == "sandbox_lost":
        raise SandboxLost("the sandbox was lost while the command ran")
