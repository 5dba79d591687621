"""Environments of Harbor in sandboxes of Warren: tasks from Dockerfile to verdict, and each method by itself."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

from harbor.models.task.config import EnvironmentConfig as TaskEnvironment
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.paths import TrialPaths
from harbor.trial.trial import Trial

from warren import AsyncSandboxClient
from warren.integrations.harbor import WarrenEnvironment
from warren.model.errors import WarrenError

WARREN = Path(__file__).parents[3] / ".venv" / "bin" / "warren"
BUILD = f"{WARREN} image build"
HERE = Path.cwd()
TASK = {
    "instruction.md": "Write the greeting, and what was built, to /app/answer.txt.\n",
    "task.toml": """schema_version = "1.4"
[verifier]
timeout_sec = 120.0
[agent]
timeout_sec = 120.0
[environment]
build_timeout_sec = 300.0
memory_mb = 300
cpus = 1
env = {PLACE = "here"}
""",
    "environment/Dockerfile": "FROM base\nRUN echo built > /opt/built && id -un > /opt/builder\n"
    "COPY greeting.txt /app/\nWORKDIR /app\n",
    "environment/greeting.txt": "hello\n",
    "solution/solve.sh": "#!/bin/bash\nset -e\necho $(cat greeting.txt) $(cat /opt/built) $PLACE > answer.txt\n",
    "tests/test.sh": '#!/bin/bash\necho "$(cat /app/answer.txt)"; id -un\n'
    '[ "$(cat /app/answer.txt)" = "hello built here" ] && reward=1 || reward=0\n'
    "echo $reward > /logs/verifier/reward.txt\n",
}


def write_task(name: str, **changes: str) -> Path:
    for path, text in {**TASK, **changes}.items():
        (HERE / name / path).parent.mkdir(parents=True, exist_ok=True)
        (HERE / name / path).write_text(text)
    return HERE / name


async def trial(task: Path, **how: Any) -> Any:
    kwargs = {"environment": "workshop", "build_command": BUILD}
    environment = EnvironmentConfig(
        import_path="warren.integrations.harbor:WarrenEnvironment", kwargs={**kwargs, **how.pop("kwargs", {})}, **how
    )
    config = TrialConfig(
        task=TaskConfig(path=task),
        trials_dir=HERE / "trials",
        agent=AgentConfig(name="oracle"),
        environment=environment,
    )
    return await (await Trial.create(config)).run()


async def from_its_dockerfile_to_its_verdict() -> None:
    results = await asyncio.gather(*(trial(write_task("greet")) for _ in range(2)))
    for result in results:
        assert result.exception_info is None, result.exception_info
        assert result.verifier_result.rewards == {"reward": 1}, result.verifier_result
    again = await trial(write_task("greet"), kwargs={"build_command": ""})
    assert again.verifier_result.rewards == {"reward": 1}, "an image that is there is not built again"
    await remove_image("harbor-greet-")

    wrong = await trial(write_task("lazy", **{"solution/solve.sh": "#!/bin/bash\necho no > answer.txt\n"}))
    assert wrong.verifier_result.rewards == {"reward": 0}, wrong
    await remove_image("harbor-lazy-")
    unbuilt = await trial(write_task("unbuilt", **{"environment/Dockerfile": "FROM base\nRUN exit 3\n"}))
    assert unbuilt.exception_info.exception_type == "SandboxBuildFailedError"
    assert "step 2" in unbuilt.exception_info.exception_message or "exit 3" in unbuilt.exception_info.exception_message
    nobody = await trial(write_task("unbuilt"), kwargs={"build_command": ""})
    assert "warren image build harbor-unbuilt-" in nobody.exception_info.exception_message


async def remove_image(begin: str) -> None:
    [image] = [each.name for each in await AsyncSandboxClient.list_images() if each.name.startswith(begin)]
    removing = await asyncio.create_subprocess_exec(WARREN, "image", "remove", image, stdout=asyncio.subprocess.DEVNULL)
    assert await removing.wait() == 0


def new(**how: Any) -> WarrenEnvironment:
    folder = HERE / "empty"
    folder.mkdir(exist_ok=True)
    config = {"docker_image": "base", **how.pop("config", {})}
    kwargs = {"environment": "workshop", **how}
    paths = TrialPaths(trial_dir=HERE / "trial")
    return WarrenEnvironment(folder, "single", "single__1", paths, TaskEnvironment(**config), **kwargs)


@contextlib.asynccontextmanager
async def started(**how: Any) -> AsyncIterator[WarrenEnvironment]:
    environment = new(**how)
    try:
        await environment.start(force_build=False)
        yield environment
    finally:
        await environment.stop(delete=True)


async def each_method() -> None:
    config = {"memory_mb": 300, "env": {"PLACE": "here"}}
    async with started(config=config, metadata={"who": "harbor"}, persistent_env={"MORE": "1"}) as box:
        [session] = await AsyncSandboxClient.list_sessions(metadata={"who": "harbor"})
        assert session.limits is not None
        assert session.limits["memory_mb"] == 300
        assert session.metadata["harbor_session"] == "single__1"

        seen = await box.exec("echo $PLACE $MORE $ONCE; id -un; echo err >&2; exit 3", env={"ONCE": "2"}, cwd="/tmp")
        assert (seen.stdout, seen.stderr, seen.return_code) == ("here 1 2\nroot\n", "err\n", 3), seen
        assert (await box.exec("id -un", user=session.user)).stdout == f"{session.user}\n"
        with box.with_default_user(session.user):
            assert (await box.exec("id -un")).stdout == f"{session.user}\n"
        assert (await box.exec("cd /tmp; x=1; pwd")).stdout == "/tmp\n"
        assert (await box.exec("pwd; echo [$x]")).stdout == "/workspace\n[]\n"
        assert len((await box.exec("yes 123456789 | head -c 10000000")).stdout or "") == 10_000_000
        assert "after 1 seconds" in str(await failure(RuntimeError, box.exec("sleep 61", timeout_sec=1)))
        await until_gone(box, "sleep 61")
        running = asyncio.create_task(box.exec("sleep 62"))
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.wait([running])
        await until_gone(box, "sleep 62")

        told: list[tuple[str, str]] = []

        async def tell(text: str, stream: str) -> None:
            told.append((stream, text))

        with box.scoped_output_callback(tell):
            seen = await box.exec("echo one; sleep 0.5; echo two; echo three >&2; exit 4")
        assert told[0] == ("stdout", "one\n"), told
        assert (seen.stdout, seen.stderr, seen.return_code) == ("one\ntwo\n", "three\n", 4)

        data = os.urandom(10_000_000)
        tree = HERE / "tree"
        (tree / "below").mkdir(parents=True)
        (tree / "below" / "data.bin").write_bytes(data)
        (tree / "run").write_text("#!/bin/sh\necho ran\n")
        (tree / "run").chmod(0o755)
        await box.upload_dir(tree, "/opt/tree")
        await box.upload_file(tree / "run", "/opt/new/run")
        assert (
            await box.exec("/opt/tree/run; ls /opt/tree /opt/new")
        ).stdout == "ran\n/opt/new:\nrun\n\n/opt/tree:\nbelow\nrun\n"
        assert await box.is_dir("/opt/tree")
        assert await box.is_file("/opt/new/run")
        await box.download_dir("/opt/tree", HERE / "back")
        assert (HERE / "back" / "below" / "data.bin").read_bytes() == data
        await box.download_file("/opt/tree/below/data.bin", HERE / "deep" / "data.bin")
        assert (HERE / "deep" / "data.bin").read_bytes() == data
        await failure(FileNotFoundError, box.download_file("/opt/none", HERE / "none"))
        await failure(FileNotFoundError, box.download_dir("/opt/none", HERE / "none.d"))

        assert (await network(box)).internet
        await box.set_network_policy(NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["pypi.org"]))
        assert ((await network(box)).internet, (await network(box)).allow) == (False, ["pypi.org"])
        await box.set_network_policy(NetworkPolicy(network_mode=NetworkMode.NO_NETWORK))
        assert ((await network(box)).internet, (await network(box)).allow) == (False, [])

        async with AsyncSandboxClient.attach(session.session_id) as client:
            await client.cleanup()
        for gone in (box.exec("true"), box.upload_file(tree / "run", "/x"), box.download_dir("/opt", HERE / "gone")):
            assert session.session_id in str(await failure((WarrenError, ConnectionError), gone))


async def what_is_refused_and_what_stays() -> None:
    await failure(RuntimeError, new().exec("true"))
    for wrong in ({"enviroment": "base"}, {"network": {}}):
        with contextlib.suppress(TypeError):
            new(**wrong)
            raise AssertionError(wrong)
    with contextlib.suppress(FileNotFoundError):
        new(config={"docker_image": None})
        raise AssertionError("no definition")
    await failure(WarrenError, new(environment="nowhere").start(False))
    await failure(WarrenError, new(config={"docker_image": "no-such-image"}).start(False))
    for after_s in (0.005, 0.01, 0.02, 0.04):
        box = new(config={"memory_mb": 222})
        starting = asyncio.create_task(box.start(False))
        await asyncio.sleep(after_s)
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled():  # it was faster
            await box.stop(delete=True)
    assert await AsyncSandboxClient.list_sessions() == []

    async with started(config={"workdir": "/not/there/yet"}) as box:
        assert (await box.exec("pwd")).stdout == "/not/there/yet\n"
    kept = new()
    await kept.start(False)
    await kept.stop(delete=False)
    [session] = await AsyncSandboxClient.list_sessions()
    async with AsyncSandboxClient.attach(session.session_id) as client:
        await client.cleanup()


async def network(box: WarrenEnvironment) -> Any:
    assert box._client is not None
    return await box._client.network()


async def until_gone(box: WarrenEnvironment, command: str) -> None:
    for _ in range(100):
        found = (await box.exec(f"ps -eo args | grep '^[{command[0]}]{command[1:]}'")).stdout
        if not found:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"it still runs: {found}")


async def failure(kind: Any, work: Awaitable[Any]) -> Any:
    try:
        found = await work
    except kind as exc:
        return exc
    raise AssertionError(f"no {kind}, but {found!r:.200}")


async def main() -> None:
    await each_method()
    await what_is_refused_and_what_stays()
    await from_its_dockerfile_to_its_verdict()
    assert await AsyncSandboxClient.list_sessions() == []


asyncio.run(main())
