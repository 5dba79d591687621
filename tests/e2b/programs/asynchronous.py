"""The asynchronous half of the SDK: the same calls, many of them at once."""

import asyncio
import io
import time

from checks import UNKNOWN, done, fetch, new_mark, refused, since, web_url
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FilesystemEventType,
    NotFoundException,
    SandboxQuery,
    TimeoutException,
)
from e2b.sandbox.commands.command_handle import PtySize


async def until(holds, timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.05)


async def lifecycle() -> None:
    mark = new_mark()
    sandbox = await AsyncSandbox.create(timeout=120, metadata=mark, envs={"A": "1"})
    assert await sandbox.is_running()
    other = await AsyncSandbox.connect(sandbox.sandbox_id, timeout=300)
    assert (await other.commands.run("echo $A")).stdout == "1\n"
    assert (await (await sandbox.connect()).get_info()).metadata == mark
    await sandbox.set_timeout(200)
    await AsyncSandbox.set_timeout(sandbox.sandbox_id, 250)
    info = await AsyncSandbox.get_info(sandbox.sandbox_id)
    assert info.end_at > info.started_at
    pages = AsyncSandbox.list(query=SandboxQuery(metadata=mark), limit=1)
    assert [found.sandbox_id for found in await pages.next_items()] == [sandbox.sandbox_id]
    assert not pages.has_next
    async with asyncio.timeout(30):
        while not await sandbox.get_metrics():
            await asyncio.sleep(0.1)
    assert await AsyncSandbox.get_metrics(sandbox.sandbox_id)
    assert await sandbox.kill() is True
    assert await AsyncSandbox.kill(sandbox.sandbox_id) is False
    assert not await sandbox.is_running()
    with refused(NotFoundException):
        await AsyncSandbox.connect(UNKNOWN)
    with refused(AuthenticationException):
        await AsyncSandbox.create(api_key="e2b_" + "0" * 80)
    with refused(TimeoutException):
        await sandbox.commands.run("true")


async def processes(sandbox: AsyncSandbox) -> None:
    run = sandbox.commands.run
    out, err = [], []

    async def on_stdout(text: str) -> None:
        out.append(text)

    result = await run("echo a; echo b >&2", on_stdout=on_stdout, on_stderr=err.append)
    assert (result.stdout, result.stderr) == ("a\n", "b\n")
    assert (out, err) == (["a\n"], ["b\n"])
    with refused(CommandExitException):
        await run("exit 9")
    with refused(TimeoutException):
        await run("sleep 30", timeout=1)
    assert (await run("whoami; pwd; echo $B", user="root", cwd="/tmp", envs={"B": "2"})).stdout == "root\n/tmp\n2\n"

    started = time.monotonic()
    answers = await asyncio.gather(*(run(f"sleep 1; echo {number}") for number in range(20)))
    assert [answer.stdout for answer in answers] == [f"{number}\n" for number in range(20)]
    assert time.monotonic() - started < 15, "they ran one after the other"

    handle = await run("read x; echo got $x; sleep 300", background=True, stdin=True)
    assert handle.pid in [info.pid for info in await sandbox.commands.list()]
    await sandbox.commands.send_stdin(handle.pid, "line\n")
    await until(lambda: handle.stdout == "got line\n")
    assert handle.exit_code is None
    other = await sandbox.commands.connect(handle.pid)
    await other.disconnect()
    assert await sandbox.commands.kill(handle.pid) is True
    with refused(CommandExitException):
        await handle.wait()
    assert await sandbox.commands.kill(handle.pid) is False
    if since(2, 34):
        handle = await run("cat", background=True, stdin=True)
        await handle.send_stdin("whole")
        await handle.close_stdin()
        assert (await handle.wait()).stdout == "whole"
        handle = await run("cat", background=True, stdin=True)
        await sandbox.commands.close_stdin(handle.pid)
        assert (await handle.wait()).stdout == ""
    if since(2, 63):
        handle = await run("cat | wc -c", background=True, stdin=True)
        stream = sandbox.commands.stream_input(handle.pid)
        for _ in range(10):
            await stream.send(b"0123456789" * 1000)
        await stream.close()
        await handle.close_stdin()
        assert (await handle.wait()).stdout == "100000\n"


async def terminals(sandbox: AsyncSandbox) -> None:
    data = bytearray()
    handle = await sandbox.pty.create(PtySize(rows=30, cols=100), on_data=data.extend)
    await sandbox.pty.send_stdin(handle.pid, b"stty size\n")
    await until(lambda: b"30 100" in data)
    await sandbox.pty.resize(handle.pid, PtySize(rows=31, cols=101))
    await sandbox.pty.send_stdin(handle.pid, b"stty size\n")
    await until(lambda: b"31 101" in data)
    if since(2, 20):
        more = bytearray()
        other = await sandbox.pty.connect(handle.pid, on_data=more.extend)
        await sandbox.pty.send_stdin(handle.pid, b"echo a$((1+1))b\n")
        await until(lambda: b"a2b" in more)
        await other.disconnect()
    if since(2, 63):
        stream = sandbox.pty.stream_input(handle.pid)
        await stream.send(b"echo c$((1+2))d\n")
        await until(lambda: b"c3d" in data)
        await stream.close()
    assert await sandbox.pty.kill(handle.pid) is True
    with refused(CommandExitException):
        await handle.wait()


async def files(sandbox: AsyncSandbox) -> None:
    files = sandbox.files
    await files.write("a.txt", "text")
    assert await files.read("a.txt") == "text"
    data = bytes(range(256)) * 40_000
    await files.write("data", io.BytesIO(data))
    assert await files.read("data", format="bytes") == data
    assert b"".join([piece async for piece in await files.read("data", format="stream")]) == data
    infos = await files.write_files([{"path": f"m/{number}", "data": str(number)} for number in range(5)])
    assert len(infos) == len(await files.list("m")) == 5
    assert await files.make_dir("folder") is True
    assert await files.make_dir("folder") is False
    assert (await files.rename("a.txt", "folder/b.txt")).name == "b.txt"
    assert await files.exists("folder/b.txt")
    assert (await files.get_info("folder/b.txt")).size == 4
    await files.remove("folder")
    assert not await files.exists("folder")
    with refused(NotFoundException):
        await files.read("folder/b.txt")
    contents = await asyncio.gather(*(files.read(f"m/{number}") for number in range(5)))
    assert contents == ["0", "1", "2", "3", "4"]


async def watching(sandbox: AsyncSandbox) -> None:
    events, ended = [], []
    await sandbox.files.make_dir("seen")
    watch = await sandbox.files.watch_dir("seen", on_event=events.append, on_exit=ended.append, recursive=True)
    await sandbox.files.write("seen/below/new", "x")
    await until(lambda: any(event.type is FilesystemEventType.CREATE for event in events))
    await sandbox.files.write("seen/plain", "x")
    await until(lambda: ("plain", FilesystemEventType.WRITE) in [(event.name, event.type) for event in events])
    await watch.stop()
    count = len(events)
    await sandbox.files.write("seen/unseen", "x")
    await asyncio.sleep(0.3)
    assert len(events) == count
    with refused(NotFoundException):
        await sandbox.files.watch_dir("none", on_event=events.append)


async def servers(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run("python3 -m http.server 4000", background=True)
    address = web_url(sandbox.get_host(4000))
    async with asyncio.timeout(20):
        while (await asyncio.to_thread(fetch, address)).status_code != 200:
            await asyncio.sleep(0.1)
    await handle.kill()
    url = sandbox.download_url("m/3", use_signature_expiration=60)
    assert (await asyncio.to_thread(fetch, url)).text == "3"


async def main() -> None:
    await lifecycle()
    async with await AsyncSandbox.create(timeout=300) as sandbox:
        await processes(sandbox)
        await terminals(sandbox)
        await files(sandbox)
        await watching(sandbox)
        await servers(sandbox)
        if since(2, 20):
            from e2b import AsyncTemplate

            assert await AsyncTemplate.exists("base")
            assert not await AsyncTemplate.exists("none-of-that-name")
        if since(2, 34):
            await sandbox.update_network({"allow_internet_access": False})


asyncio.run(main())
done()
