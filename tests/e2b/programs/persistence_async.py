"""The asynchronous half of what lasts: pauses, auto-resume, snapshots and forks, many of them at once."""

import asyncio

from checks import done, new_mark, refused, since
from e2b import AsyncSandbox, NotFoundException, SandboxException, SandboxQuery, SandboxState


async def paused_and_resumed() -> None:
    mark = new_mark()
    sandboxes = await asyncio.gather(*(AsyncSandbox.create(metadata=mark) for _ in range(3)))
    try:
        for sandbox in sandboxes:
            await sandbox.files.write("note", sandbox.sandbox_id)
        await asyncio.gather(*(sandbox.beta_pause() for sandbox in sandboxes[:2]))
        assert [await sandbox.is_running() for sandbox in sandboxes] == [False, False, True]
        pages = AsyncSandbox.list(query=SandboxQuery(metadata=mark, state=[SandboxState.PAUSED]), limit=1)
        paused = []
        while pages.has_next:
            paused += [found.sandbox_id for found in await pages.next_items()]
        assert set(paused) == {sandbox.sandbox_id for sandbox in sandboxes[:2]}
        both = SandboxQuery(metadata=mark, state=[SandboxState.RUNNING, SandboxState.PAUSED])
        assert len(await AsyncSandbox.list(query=both).next_items()) == 3
        resumed = await asyncio.gather(*(AsyncSandbox.connect(each, timeout=60) for each in paused))
        for sandbox in resumed:
            assert await sandbox.files.read("note") == sandbox.sandbox_id
    finally:
        await asyncio.gather(*(sandbox.kill() for sandbox in sandboxes))


async def by_activity() -> None:
    sandbox = await AsyncSandbox.create(timeout=2, lifecycle={"on_timeout": "pause", "auto_resume": True})
    await sandbox.files.write("note", "kept")
    async with asyncio.timeout(60):
        while (await sandbox.get_info()).state is not SandboxState.PAUSED:
            await asyncio.sleep(0.1)
    answers = await asyncio.gather(*(sandbox.commands.run("cat note") for _ in range(5)))
    assert {answer.stdout for answer in answers} == {"kept"}
    await AsyncSandbox.pause(sandbox.sandbox_id)
    await sandbox.pause()  # it is paused already
    assert not await sandbox.is_running()
    assert await sandbox.files.read("note") == "kept"
    assert await sandbox.kill()
    with refused(NotFoundException):
        await sandbox.pause()


async def snapshots() -> None:
    async with await AsyncSandbox.create() as sandbox:
        await sandbox.files.write("/home/user/shared.txt", "shared")
        snapshot = await sandbox.create_snapshot()
        made = await asyncio.gather(*(AsyncSandbox.create(snapshot.snapshot_id) for _ in range(2)))
        assert [await each.files.read("/home/user/shared.txt") for each in made] == ["shared", "shared"]
        await asyncio.gather(*(each.kill() for each in made))
        by_id = await AsyncSandbox.create_snapshot(sandbox.sandbox_id)
        mine = await sandbox.list_snapshots().next_items()
        assert {each.snapshot_id for each in mine} == {snapshot.snapshot_id, by_id.snapshot_id}
        assert (await AsyncSandbox.list_snapshots(limit=1).next_items())[0].snapshot_id == by_id.snapshot_id
        for each in mine:
            assert await AsyncSandbox.delete_snapshot(each.snapshot_id)
        assert not await AsyncSandbox.delete_snapshot(snapshot.snapshot_id)
        with refused(SandboxException):
            await AsyncSandbox.create(snapshot.snapshot_id)


async def forks() -> None:
    async with await AsyncSandbox.create() as sandbox:
        await sandbox.files.write("/home/user/state.txt", "before")
        made = await sandbox.fork(count=2, timeout=60)
        made += await AsyncSandbox.fork(sandbox.sandbox_id, timeout=60)
        assert all(isinstance(each, AsyncSandbox) for each in made), made
        await made[0].files.write("/home/user/state.txt", "after")
        texts = await asyncio.gather(*(each.files.read("/home/user/state.txt") for each in (sandbox, *made)))
        assert texts == ["before", "after", "before", "before"]
        await asyncio.gather(*(each.kill() for each in made))


async def main() -> None:
    await paused_and_resumed()
    if since(2, 20):
        await by_activity()
        await snapshots()
    if since(2, 34):
        await forks()


asyncio.run(main())
done()
