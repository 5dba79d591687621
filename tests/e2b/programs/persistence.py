"""Sandboxes that last, as E2B's pages about persistence, auto-resume, snapshots and forking show it."""

import time

from checks import UNKNOWN, done, fetch, new_mark, refused, since, wait_until, web_url
from e2b import NotFoundException, Sandbox, SandboxException, SandboxQuery, SandboxState


def state_of(sandbox: Sandbox) -> str:
    return sandbox.get_info().state.value


def paused_and_resumed() -> None:
    mark = new_mark()
    sandbox = Sandbox.create(metadata=mark)  # it starts running
    sandbox.files.write("note", "kept")
    clock = sandbox.commands.run("while sleep 0.1; do date >> ticks; done", background=True)
    wait_until(lambda: sandbox.files.exists("ticks"))

    pause(sandbox)
    assert not sandbox.is_running()
    assert state_of(sandbox) == "paused"
    if since(2, 34):
        assert sandbox.pause() is False  # it is paused already; older SDKs do not say
    with refused(Exception):
        sandbox.commands.run("true", request_timeout=10)

    paginator = Sandbox.list(SandboxQuery(metadata=mark, state=[SandboxState.PAUSED]))
    sandboxes = paginator.next_items()
    while paginator.has_next:
        sandboxes.extend(paginator.next_items())
    assert [(each.sandbox_id, each.state) for each in sandboxes] == [(sandbox.sandbox_id, SandboxState.PAUSED)]
    assert Sandbox.list(SandboxQuery(metadata=mark, state=[SandboxState.RUNNING])).next_items() == []
    assert len(Sandbox.list(SandboxQuery(metadata=mark)).next_items()) == 1

    same = sandbox.connect()
    assert same.sandbox_id == sandbox.sandbox_id
    assert sandbox.is_running()
    assert same.files.read("note") == "kept"
    before = sandbox.files.read("ticks")  # what ran goes on
    wait_until(lambda: len(sandbox.files.read("ticks")) > len(before))
    assert clock.pid in [process.pid for process in sandbox.commands.list()]

    if since(2, 20):
        Sandbox.pause(sandbox.sandbox_id)
    else:
        Sandbox.beta_pause(sandbox.sandbox_id)
    other = Sandbox.connect(sandbox.sandbox_id, timeout=60)  # with a time-out of its own
    info = other.get_info()
    left = info.end_at.timestamp() - time.time()
    assert 40 < left <= 60, left
    pause(other)
    assert sandbox.kill()  # also of a paused one
    assert Sandbox.kill(sandbox.sandbox_id) is False
    with refused(NotFoundException):
        pause(other)


def pause(sandbox: Sandbox) -> None:
    if since(2, 20):
        sandbox.pause()
    else:
        sandbox.beta_pause()


def at_the_timeout() -> None:
    if since(2, 20):
        sandbox = Sandbox.create(timeout=2, lifecycle={"on_timeout": "pause"})
    else:
        sandbox = Sandbox.beta_create(auto_pause=True, timeout=2)
    sandbox.files.write("note", "kept")
    for _ in range(2):
        wait_until(lambda: state_of(sandbox) == "paused", 60)
        sandbox.connect(timeout=2)
        assert sandbox.files.read("note") == "kept"
    if since(2, 34):
        assert sandbox.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": False}
    sandbox.kill()


def by_activity() -> None:
    sandbox = Sandbox.create(timeout=10 * 60, lifecycle={"on_timeout": "pause", "auto_resume": True})
    sandbox.files.write("/home/user/hello.txt", "hello from a paused sandbox")
    sandbox.pause()
    assert sandbox.files.read("/home/user/hello.txt") == "hello from a paused sandbox"
    assert state_of(sandbox) == "running"
    left = sandbox.get_info().end_at.timestamp() - time.time()
    assert 500 < left <= 600, left

    sandbox.commands.run("python3 -m http.server 3000", background=True)
    address = web_url(sandbox.get_host(3000))
    wait_until(lambda: fetch(address).status_code == 200)
    sandbox.pause()
    assert not sandbox.is_running()
    assert "hello.txt" in fetch(address).text  # the request waits until it runs
    sandbox.pause()
    assert sandbox.commands.run("echo on").stdout == "on\n"
    sandbox.kill()


def snapshots() -> None:
    sandbox = Sandbox.create()
    sandbox.files.make_dir("/home/user/app")
    sandbox.files.write("/home/user/app/config.json", '{"env": "test"}')
    snapshot = sandbox.create_snapshot()
    by_id = Sandbox.create_snapshot(sandbox.sandbox_id)
    assert snapshot.snapshot_id != by_id.snapshot_id
    assert sandbox.is_running()

    new = Sandbox.create(snapshot.snapshot_id)
    another = Sandbox.create(snapshot.snapshot_id, timeout=60)
    new.files.write("/home/user/app/config.json", "changed")
    assert another.files.read("/home/user/app/config.json") == '{"env": "test"}'
    assert another.files.exists("/home/user/app")
    assert new.sandbox_id != sandbox.sandbox_id
    assert new.commands.run("cat app/config.json").stdout == "changed"
    for each in (new, another):
        each.kill()

    paginator = Sandbox.list_snapshots(limit=1)
    found = []
    while paginator.has_next:
        found.extend(paginator.next_items())
    assert {snapshot.snapshot_id, by_id.snapshot_id} <= {each.snapshot_id for each in found}
    mine = sandbox.list_snapshots().next_items()
    assert [each.snapshot_id for each in mine] == [by_id.snapshot_id, snapshot.snapshot_id]
    assert len(Sandbox.list_snapshots(sandbox_id=sandbox.sandbox_id).next_items()) == 2
    assert Sandbox.list_snapshots(sandbox_id=UNKNOWN).next_items() == []
    if since(2, 34):
        named(sandbox)
    sandbox.kill()

    kept = Sandbox.create(snapshot.snapshot_id)  # it outlives its sandbox
    kept.kill()
    for each in (snapshot, by_id):
        assert Sandbox.delete_snapshot(each.snapshot_id) is True
        assert Sandbox.delete_snapshot(each.snapshot_id) is False
    with refused(SandboxException):
        Sandbox.create(snapshot.snapshot_id)


def named(sandbox: Sandbox) -> None:
    name = f"ready-{new_mark()['mark'][:8]}"
    first, second = sandbox.create_snapshot(name=name), sandbox.create_snapshot(name=f"{name}:v2")
    assert any(name in each for each in first.names)
    assert any(each.endswith(f"{name}:v2") for each in second.names)
    for template in (name, first.names[0], second.names[0]):
        with Sandbox.create(template) as again:
            assert again.files.exists("/home/user/app")
    if since(2, 63):
        found = Sandbox.list_snapshots(name=name).next_items()
        assert [each.snapshot_id for each in found] == [second.snapshot_id, first.snapshot_id]
        assert Sandbox.list_snapshots(name=f"{name}-not").next_items() == []
        files_alone = sandbox.create_snapshot(mode="filesystem")
        assert Sandbox.delete_snapshot(files_alone.snapshot_id)
    assert Sandbox.delete_snapshot(second.names[0])
    assert Sandbox.delete_snapshot(name)


def forks() -> None:
    sandbox = Sandbox.create()
    sandbox.files.write("/home/user/state.txt", "state before fork")
    fork1, fork2 = sandbox.fork(count=2, timeout=60)
    (fork3,) = Sandbox.fork(sandbox.sandbox_id)
    everyone = [sandbox, fork1, fork2, fork3]
    assert all(isinstance(each, Sandbox) for each in everyone)
    assert len({each.sandbox_id for each in everyone}) == 4
    assert all(each.is_running() for each in everyone)
    fork1.files.write("/home/user/state.txt", "modified in fork")
    texts = [each.files.read("/home/user/state.txt") for each in everyone]
    assert texts == ["state before fork", "modified in fork", "state before fork", "state before fork"]
    assert 40 < fork1.get_info().end_at.timestamp() - time.time() <= 60
    for each in everyone:
        each.kill()
    with refused(NotFoundException):
        sandbox.fork()


def with_files_alone() -> None:
    with Sandbox.create() as sandbox:
        sandbox.files.write("/home/user/marker.txt", "persisted")
        clock = sandbox.commands.run("sleep 1000", background=True)
        assert sandbox.pause(keep_memory=False)
        assert not sandbox.is_running()
        resumed = sandbox.connect()
        assert resumed.sandbox_id == sandbox.sandbox_id
        assert resumed.is_running()
        assert sandbox.files.read("/home/user/marker.txt") == "persisted"
        assert clock.pid not in [process.pid for process in sandbox.commands.list()]
        if since(2, 63):
            sandbox.commands.run("sleep 1000", background=True)
            assert sandbox.pause(mode="full")
            sandbox.connect(on_resume="reboot")
            assert sandbox.commands.list() == []
            assert sandbox.pause(mode="filesystem")
            sandbox.connect(on_resume="reboot")
            assert sandbox.files.read("/home/user/marker.txt") == "persisted"
    brief = Sandbox.create(timeout=2, lifecycle={"on_timeout": {"action": "pause", "keep_memory": False}})
    brief.files.write("/home/user/marker.txt", "persisted")
    wait_until(lambda: state_of(brief) == "paused", 60)
    brief.connect()
    assert brief.files.read("/home/user/marker.txt") == "persisted"
    brief.kill()


paused_and_resumed()
at_the_timeout()
if since(2, 20):
    by_activity()
    snapshots()
if since(2, 34):
    forks()
    with_files_alone()
done()
