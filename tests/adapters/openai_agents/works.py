"""The sandbox of the OpenAI Agents SDK: agents, commands, files, ports, and workspaces that are kept."""

import asyncio
import contextlib
import io
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

from agents import Runner
from agents.run import RunConfig
from agents.run_config import SandboxRunConfig
from agents.sandbox import Manifest, SandboxAgent
from agents.sandbox.entries import Dir, File
from agents.sandbox.errors import (
    ExecNonZeroError,
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    InvalidManifestPathError,
    MountConfigError,
    PtySessionNotFoundError,
    SandboxError,
    WorkspaceArchiveReadError,
    WorkspaceReadNotFoundError,
    WorkspaceRootNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.manifest import Environment
from agents.sandbox.session import SandboxSession
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.sandbox.types import User
from script import Script

from warren import AsyncSandboxClient
from warren.integrations.openai_agents import WarrenSandboxClient, WarrenSandboxClientOptions

KEPT = Path(tempfile.mkdtemp())
MANIFEST = Manifest(
    entries={"notes.txt": File(content=b"four words are here\n"), "deep": Dir(children={"x": File(content=b"x")})},
    environment=Environment(value={"PLACE": "here"}),
)
client = WarrenSandboxClient()


@contextlib.asynccontextmanager
async def sandbox(manifest: Manifest = MANIFEST, **options: Any) -> AsyncIterator[SandboxSession]:
    session = await client.create(manifest=manifest, options=WarrenSandboxClientOptions(**options))
    async with session:
        yield session
    await client.delete(session)


async def commands() -> None:
    async with sandbox(env={"COLOUR": "red"}, limits={"memory_mb": 256}, metadata={"for": "a test"}) as box:
        [info] = await AsyncSandboxClient.list_sessions()
        assert (info.limits or {})["memory_mb"] == 256
        assert info.metadata["for"] == "a test"
        done = await box.exec("echo $PLACE $COLOUR; pwd; echo wrong >&2; exit 3")
        assert (done.stdout, done.stderr, done.exit_code) == (b"here red\n/workspace\n", b"wrong\n", 3)
        assert (await box.exec("wc", "-w", "notes.txt", shell=False)).stdout == b"4 notes.txt\n"
        big = await box.exec("head -c 10000000 /dev/zero")
        assert big.stdout == bytes(10_000_000)
        huge = await box.exec("yes | head -c 40000000")
        assert b"output is missing" in huge.stderr
        slow: Any = await failure(ExecTimeoutError, box.exec("echo so far; sleep 60", timeout=1))
        assert slow.context["stdout"] == "so far\n"
        assert "stopped after 1 seconds" in slow.context["stderr"]
        running = asyncio.create_task(box.exec("sleep 1000"))
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.wait([running])
        await until_ended(box, "sleep")
        assert "no user nobody-here" in str(await failure(ExecTransportError, box.exec("id", user="nobody-here")))
    async with sandbox(Manifest(root="/workspace/below")) as box:
        assert (await box.exec("pwd")).stdout == b"/workspace/below\n"
        await box.exec("rmdir /workspace/below")
        await failure(WorkspaceRootNotFoundError, box.exec("true"))
    assert await AsyncSandboxClient.list_sessions() == []


async def background() -> None:
    async with sandbox() as box:
        done = await box.pty_exec_start("echo $PLACE; cat; exit 5", yield_time_s=20)
        assert (done.process_id, done.exit_code, done.output) == (None, 5, b"here\n")
        shell = await box.pty_exec_start("test -t 0 && stty -echo && while read x; do echo got $x; done", tty=True)
        assert shell.process_id
        how: Any = {"session_id": shell.process_id, "yield_time_s": 1}
        assert (await box.pty_write_stdin(chars="one\n", **how)).output == b"got one\r\n"
        ended = await box.pty_write_stdin(chars="\x04", **how)
        assert (ended.process_id, ended.exit_code) == (None, 0)
        await failure(PtySessionNotFoundError, box.pty_write_stdin(chars="", **how))
        counting = await box.pty_exec_start("for i in $(seq 6); do echo $i; sleep 0.5; done", yield_time_s=1)
        assert counting.output.startswith(b"1\n")
        assert b"6" not in counting.output
        assert counting.process_id
        rest = await box.pty_write_stdin(session_id=counting.process_id, chars="")
        assert counting.output + rest.output == b"1\n2\n3\n4\n5\n6\n"
        assert rest.exit_code == 0
        limited = await box.pty_exec_start("sleep 1000", timeout=1, yield_time_s=20)
        assert limited.exit_code == 124
        starting = asyncio.create_task(box.pty_exec_start("sleep 1000", yield_time_s=20))
        await asyncio.sleep(1)
        starting.cancel()
        await asyncio.wait([starting])
        left = await box.pty_exec_start("sleep 1000", yield_time_s=0.3)
        assert left.process_id
        await failure(RuntimeError, box.pty_write_stdin(session_id=left.process_id, chars="x"))
        await box.pty_terminate_all()
        await until_ended(box, "sleep")


async def files() -> None:
    async with sandbox() as box:
        data = bytes(range(256)) * 40_000
        await box.write(Path("down/here/data.bin"), io.BytesIO(data))
        assert (await box.read(Path("down/here/data.bin"))).read() == data
        assert (await box.read(Path("/workspace/notes.txt"))).read() == b"four words are here\n"
        if hasattr(box, "read_bounded"):  # from 0.23 on
            assert await box.read_bounded(Path("down/here/data.bin"), max_bytes=300) == data[:300]
        await failure(WorkspaceReadNotFoundError, box.read(Path("none")))
        await failure(WorkspaceReadNotFoundError, box.read(Path("notes.txt/none")))
        assert "directory" in str((await failure(WorkspaceArchiveReadError, box.read(Path("down")))).__cause__)
        await failure(InvalidManifestPathError, box.read(Path("/etc/passwd")))
        await box.exec("ln -s /etc/passwd way-out")
        await failure(InvalidManifestPathError, box.read(Path("way-out")))
        assert {Path(each.path).name for each in await box.ls("deep")} == {"x"}
        await box.mkdir("a/b", parents=True)
        await box.rm("deep", recursive=True)
        await failure(ExecNonZeroError, box.ls("deep"))


async def ports() -> None:
    async with sandbox(exposed_ports=(8000,)) as box:
        await box.pty_exec_start("python3 -m http.server 8000", yield_time_s=1)
        endpoint = await box.resolve_exposed_port(8000)
        assert endpoint.host.startswith("8000-")
        assert not endpoint.tls
        page = await fetch(endpoint)
        assert b"notes.txt" in page, page
        await failure(ExposedPortUnavailableError, box.resolve_exposed_port(9000))


async def fetch(endpoint: Any) -> bytes:
    """Names below localhost cannot be resolved everywhere, so the host is in the header alone."""
    target = endpoint.url_for("http").split("/", 3)[3]
    for _ in range(100):
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        head = f"GET /{target} HTTP/1.1\r\nHost: {endpoint.host}:{endpoint.port}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        said = await reader.read()
        writer.close()
        if said.startswith(b"HTTP/1.1 200"):
            return said
        await asyncio.sleep(0.1)  # it does not listen yet
    raise AssertionError(said)


async def users() -> None:
    manifest = Manifest(users=[User(name="ann")], entries={"mine": File(content=b"text\n", group=User(name="ann"))})
    async with sandbox(manifest, environment="workshop") as box:
        assert (await box.exec("id -un", user="ann")).stdout == b"ann\n"
        await box.exec("chmod 777 .")
        data = b"\0\xff" * 2_000_000
        await box.write(Path("of-ann"), io.BytesIO(data), user="ann")
        assert (await box.exec("stat -c %U of-ann")).stdout == b"ann\n"
        assert (await box.read(Path("of-ann"), user="ann")).read() == data
        started = await box.pty_exec_start("id -un", tty=True, user="ann", yield_time_s=20)
        assert started.output == b"ann\r\n"
        await box.exec("echo secret > s; chmod 600 s")
        await failure(WorkspaceArchiveReadError, box.read(Path("s"), user="ann"))
    session = await client.create(manifest=Manifest(users=[User(name="ann")]))
    assert "root" in str(await failure(SandboxError, session.start()))
    await client.delete(session)
    assert await AsyncSandboxClient.list_sessions() == []


async def kept(persistence: str) -> None:
    snapshot = LocalSnapshotSpec(base_path=KEPT)
    options = WarrenSandboxClientOptions(workspace_persistence=persistence)
    session = await client.create(snapshot=snapshot, manifest=MANIFEST, options=options)
    async with session:
        await session.exec(
            "echo 1 > made; ln -s /usr/bin/env outside; head -c 20000000 /dev/urandom > big; echo 9 > '*'"
        )
        digest = (await session.exec("sha256sum big; ls -l")).stdout
        if persistence == "tar":
            session.register_persist_workspace_skip_path("skipped")
            await session.exec("mkdir skipped && touch skipped/x && mkdir sub && touch sub/skipped")
    state = client.deserialize_session_state(client.serialize_session_state(session.state))
    assert await AsyncSandboxClient.list_sessions() == []
    again = await client.resume(state)
    async with again:
        await again.exec("test -e sub/skipped && rm -r sub && test ! -e skipped", timeout=9)
        assert (await again.exec("sha256sum big; ls -l")).stdout == digest
        assert (await again.exec("echo $PLACE")).stdout == b"here\n"
    async with AsyncSandboxClient() as warren:
        for each in await warren.snapshots.list():
            await warren.snapshots.delete(each)


async def paused() -> None:
    session = await client.create(manifest=MANIFEST, options=WarrenSandboxClientOptions(pause_on_exit=True))
    async with session:
        await session.exec("echo 1 > made")
    await client.delete(session)
    [info] = await AsyncSandboxClient.list_sessions()
    assert info.state == "paused"
    again = await client.resume(session.state)
    async with again:
        assert (await again.exec("cat made")).stdout == b"1\n"
    async with AsyncSandboxClient.attach(info.session_id) as warren:
        await warren.cleanup()


async def existing() -> None:
    async with AsyncSandboxClient() as warren:
        await warren.write_file("theirs", "text")
        async with sandbox(session_id=warren.session_id) as box:
            assert (await box.exec("cat theirs notes.txt")).stdout == b"textfour words are here\n"
        assert (await warren.execute("cat theirs")).output == "text"
        await warren.cleanup()
        await failure(ExecTransportError, box.exec("true"))
        await failure(WorkspaceStartError, client.resume(box.state))


async def lost() -> None:
    session = await client.create(manifest=MANIFEST)
    async with session:
        session_id = session._inner.warren.session_id
        running = await session.pty_exec_start("sleep 1000", yield_time_s=0.3)
        async with AsyncSandboxClient.attach(session_id) as warren:
            await warren.cleanup()
        for gone in (session.exec("true"), session.pty_exec_start("true")):
            assert session_id in str(await failure(ExecTransportError, gone))
        how: Any = {"session_id": running.process_id, "chars": ""}
        await failure(ExecTransportError, session.pty_write_stdin(**how))
        await failure(SandboxError, session.read(Path("notes.txt")))
        assert not await session.running()
    again = await client.resume(session.state)  # there was no snapshot: the manifest is applied again
    async with again:
        assert (await again.exec("cat notes.txt")).stdout == b"four words are here\n"
    assert again.state.warren_session_id != session_id


async def cancelled() -> None:
    for wait_s in (0, 0.02, 0.1):
        making = asyncio.create_task(client.create(manifest=MANIFEST))
        await asyncio.sleep(wait_s)
        if making.cancel():
            await asyncio.wait([making])
        if not making.cancelled():
            await client.delete(making.result())
    assert await AsyncSandboxClient.list_sessions() == []


async def agents() -> None:
    results = await asyncio.gather(*(
        run_agent(
            ("exec_command", {"cmd": f"echo {number} > number; cat notes.txt"}),
            ("exec_command", {"cmd": "cat number; ls"}),
        )
        for number in (7, 8)
    ))  # fmt: skip
    assert ["\n7\n" in result and "notes.txt" in result for result in results] == [True, False], results
    assert "\n8\n" in results[1]
    typed = await run_agent(
        ("exec_command", {"cmd": "read x; echo got $x", "tty": True, "yield_time_ms": 300}),
        ("write_stdin", {"session_id": 0, "chars": "words\n", "yield_time_ms": 3000}),
    )
    assert "got words" in typed, typed
    assert "code 0" in typed, typed
    assert await AsyncSandboxClient.list_sessions() == []


class Typing(Script):
    """Writes to the session that the last command has left running."""

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **more: Any) -> Any:
        if self.calls and "session_id" in self.calls[0][1]:
            [number] = re.findall(r"session ID (\d+)", str(input[-1]["output"]))
            self.calls[0][1]["session_id"] = int(number)
        return await super().get_response(system_instructions, input, *args, **more)


async def run_agent(*calls: tuple[str, dict[str, Any]]) -> str:
    agent = SandboxAgent(name="worker", model=Typing(*calls), default_manifest=MANIFEST)
    config = RunConfig(sandbox=SandboxRunConfig(client=client, snapshot=LocalSnapshotSpec(base_path=KEPT)))
    result = await Runner.run(agent, "Do it.", run_config=config)
    return str(result.final_output)


async def until_ended(box: SandboxSession, name: str) -> None:
    for _ in range(100):
        if name.encode() not in (await box.exec("ps -eo comm")).stdout:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the command of a caller who has gone still runs")


async def failure(kind: type[Exception], work: Awaitable[Any]) -> Any:
    try:
        found = await work
    except kind as exc:
        return exc
    raise AssertionError(f"no {kind.__name__}, but {found!r:.200}")


async def main() -> None:
    try:
        for part in (commands, background, files, ports, users, paused, existing, lost, cancelled, agents):
            await part()
            print(part.__name__, flush=True)
        for persistence in ("tar", "snapshot"):
            await kept(persistence)
            print(persistence)
        mounted = Manifest(entries={"data": bucket()})
        await failure(MountConfigError, client.create(manifest=mounted))
    finally:
        shutil.rmtree(KEPT)
    assert await AsyncSandboxClient.list_sessions() == []


def bucket() -> Any:
    from agents.sandbox.entries import DockerVolumeMountStrategy, S3Mount

    return S3Mount(bucket="b", mount_strategy=DockerVolumeMountStrategy(driver="rclone"))


asyncio.run(main())
