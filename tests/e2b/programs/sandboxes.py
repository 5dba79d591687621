"""The life of a sandbox: create with every option, connect, info, time-outs, metrics, the end."""

import datetime
import logging

from checks import ONE_PORT, UNKNOWN, done, new_mark, refused, since, wait_until
from e2b import AuthenticationException, NotFoundException, Sandbox, SandboxException, TimeoutException


def seconds_left(sandbox: Sandbox) -> float:
    return (sandbox.get_info().end_at - datetime.datetime.now(datetime.UTC)).total_seconds()


def by_defaults() -> None:
    sandbox = Sandbox.create()
    try:
        assert sandbox.sandbox_id.isalnum(), sandbox.sandbox_id
        assert sandbox.is_running(request_timeout=30)
        assert sandbox.commands.run("whoami").stdout == "user\n"
        assert sandbox.commands.run("pwd; echo $HOME $USER").stdout == "/home/user\n/home/user user\n"
        assert 200 < seconds_left(sandbox) <= 301
        info = sandbox.get_info()
        assert info.sandbox_id == sandbox.sandbox_id
        assert info.metadata == {}
        assert info.state.value == "running"
        assert info.cpu_count >= 1
        assert info.memory_mb >= 64
        assert info.started_at.tzinfo is not None
        assert info.envd_version
        assert Sandbox.get_info(sandbox.sandbox_id) == sandbox.get_info()
        host = sandbox.get_host(3000)
        assert host.startswith(f"3000-{sandbox.sandbox_id}."), host
        assert "e2b.app" not in host, host
        assert sandbox.sandbox_domain in host
    finally:
        assert sandbox.kill() is True


def with_every_option() -> None:
    mark = new_mark()
    options = {"network": {"allow_public_traffic": True}}
    if since(2, 20):
        options["lifecycle"] = {"on_timeout": "kill"}
    if since(2, 34):
        options["logger"] = logging.getLogger("e2b")
    sandbox = Sandbox.create(
        template="base",
        timeout=120,
        metadata={**mark, "naïve": "ключ & = % +"},
        envs={"COLOUR": "green", "EMPTY": ""},
        secure=True,
        allow_internet_access=False,
        request_timeout=60,
        headers={"X-Custom": "1"},
        **options,
    )
    try:
        assert sandbox.commands.run("echo $COLOUR-${EMPTY-unset}").stdout == "green-\n"
        info = sandbox.get_info()
        assert info.metadata == {**mark, "naïve": "ключ & = % +"}
        assert 60 < seconds_left(sandbox) <= 121
        if since(2, 34):
            assert info.allow_internet_access is False
            assert info.lifecycle is not None
    finally:
        sandbox.kill()


def once() -> None:
    key = new_mark()["mark"]
    with Sandbox.create(timeout=60, idempotency_key=key) as sandbox:
        assert Sandbox.create(timeout=60, idempotency_key=key).sandbox_id == sandbox.sandbox_id
        with refused(SandboxException):
            Sandbox.create(timeout=61, idempotency_key=key)


def timeouts() -> None:
    with Sandbox.create(timeout=60) as sandbox:
        sandbox.set_timeout(600)
        assert 500 < seconds_left(sandbox) <= 601
        sandbox.set_timeout(100)
        assert 50 < seconds_left(sandbox) <= 101
        Sandbox.set_timeout(sandbox.sandbox_id, 200)
        assert 150 < seconds_left(sandbox) <= 201
        sandbox.connect(timeout=30)  # it only prolongs
        assert seconds_left(sandbox) > 100
        sandbox.connect(timeout=900)
        assert 800 < seconds_left(sandbox) <= 901
    assert not sandbox.is_running()
    brief = Sandbox.create(timeout=2)
    wait_until(lambda: not brief.is_running(), 60)
    with refused(NotFoundException):
        brief.get_info()


def connecting() -> None:
    with Sandbox.create(timeout=60, metadata=new_mark()) as sandbox:
        sandbox.files.write("note", "kept")
        other = Sandbox.connect(sandbox.sandbox_id, timeout=120)
        assert other.sandbox_id == sandbox.sandbox_id
        assert other.files.read("note") == "kept"
        assert other.commands.run("cat note").stdout == "kept"
        assert other.get_host(80) == sandbox.get_host(80)
        assert other.is_running()
        assert other.files.read("/home/user/note") == "kept"
        same = sandbox.connect()
        assert same.commands.run("echo here").stdout == "here\n"
    with refused(NotFoundException):
        Sandbox.connect(UNKNOWN)


def metrics() -> None:
    with Sandbox.create(timeout=60) as sandbox:
        sandbox.commands.run("head -c 1000000 /dev/zero > zeros")
        wait_until(sandbox.get_metrics)
        point = sandbox.get_metrics()[-1]
        assert point.cpu_count >= 1
        assert point.cpu_used_pct >= 0
        assert 0 < point.mem_used <= point.mem_total
        assert 0 <= point.disk_used <= point.disk_total
        assert point.timestamp.tzinfo is not None
        now = datetime.datetime.now()
        hour = datetime.timedelta(hours=1)
        assert Sandbox.get_metrics(sandbox.sandbox_id, start=now - hour, end=now + hour)
        assert sandbox.get_metrics(start=now - 2 * hour, end=now - hour) == []


def the_end() -> None:
    sandbox = Sandbox.create(timeout=60)
    assert Sandbox.kill(sandbox.sandbox_id) is True
    assert sandbox.kill() is False
    assert Sandbox.kill(UNKNOWN) is False
    assert sandbox.is_running() is False
    for call in (sandbox.get_info, lambda: sandbox.set_timeout(60), sandbox.connect):
        with refused(NotFoundException):
            call()
    for call in (lambda: sandbox.commands.run("true"), lambda: sandbox.files.list("/")):
        with refused(TimeoutException):
            call()
    with refused(TimeoutException):
        sandbox.files.read("note")


def wrong_keys() -> None:
    for key in ("e2b_" + "0" * 80, "e2b_00"):
        with refused(AuthenticationException):
            Sandbox.create(api_key=key)
    with refused(AuthenticationException):
        Sandbox.list(api_key="e2b_" + "f" * 80).next_items()


def wrong_requests() -> None:
    with refused(SandboxException):
        Sandbox.create(template="there-is-no-such-template")
    with refused(SandboxException):
        Sandbox.create(timeout=-1)
    with Sandbox.create(timeout=60) as sandbox, refused(SandboxException):
        sandbox.set_timeout(-5)


def bound_client() -> None:
    from e2b import E2B

    client = E2B(request_timeout=60)
    with client.Sandbox.create(timeout=60) as sandbox:
        assert sandbox.commands.run("echo bound").stdout == "bound\n"
    if ONE_PORT:
        import os

        prefixed = E2B(api_url=os.environ["E2B_API_URL"] + "/e2b", sandbox_url=os.environ["E2B_API_URL"] + "/e2b")
        with prefixed.Sandbox.create(timeout=60) as sandbox:
            sandbox.files.write("note", "by prefix")
            assert sandbox.commands.run("cat note").stdout == "by prefix"
            assert prefixed.Sandbox.connect(sandbox.sandbox_id).files.read("note") == "by prefix"


by_defaults()
with_every_option()
timeouts()
connecting()
metrics()
the_end()
wrong_keys()
wrong_requests()
if since(2, 44):
    bound_client()
if since(2, 63):
    once()
done()
