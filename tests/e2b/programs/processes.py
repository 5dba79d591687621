"""Commands: output, status, input, environment, user, directory, time-outs; in the background, and found again."""

import threading
import time

from checks import done, refused, since, wait_until
from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    TimeoutException,
)


def results(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
    assert not result.error
    with refused(CommandExitException) as refusal:
        sandbox.commands.run("echo half; echo why >&2; exit 3")
    assert refusal.error.exit_code == 3
    assert refusal.error.stdout == "half\n"
    assert refusal.error.stderr == "why\n"
    assert refusal.error.error == "exit status 3"
    with refused(CommandExitException) as refusal:
        sandbox.commands.run("there-is-no-such-program")
    assert refusal.error.exit_code == 127
    assert sandbox.commands.run("printf 'a\\nb'").stdout == "a\nb"
    assert sandbox.commands.run("echo 'žluťoučký 🐎'").stdout == "žluťoučký 🐎\n"
    assert sandbox.commands.run("").exit_code == 0
    lines = sandbox.commands.run("seq 1 200000").stdout
    assert lines == "".join(f"{number}\n" for number in range(1, 200001))
    assert sandbox.commands.run("shopt -q login_shell && echo login").stdout == "login\n"


def callbacks(sandbox: Sandbox) -> None:
    out, err, times = [], [], []

    def on_stdout(text: str) -> None:
        out.append(text)
        times.append(time.monotonic())

    command = "echo one; echo bad >&2; sleep 1; echo two"
    result = sandbox.commands.run(command, on_stdout=on_stdout, on_stderr=err.append)
    assert "".join(out) == result.stdout == "one\ntwo\n"
    assert "".join(err) == "bad\n"
    assert times[-1] - times[0] > 0.7, "the output was kept back"


def surroundings(sandbox: Sandbox) -> None:
    run = sandbox.commands.run
    assert run("echo $A $SHARED", envs={"A": "x y"}).stdout == "x y sandbox\n"
    assert run("echo $SHARED", envs={"SHARED": "command"}).stdout == "command\n"
    assert run("echo $SHARED").stdout == "sandbox\n"
    assert run("pwd", cwd="/tmp").stdout == "/tmp\n"
    run("mkdir -p /home/user/below")
    assert run("pwd", cwd="/home/user/below").stdout == "/home/user/below\n"
    assert run("whoami", user="user").stdout == "user\n"
    assert run("whoami; echo $HOME", user="root").stdout == "root\n/root\n"
    with refused(InvalidArgumentException, says="cwd"):
        run("pwd", cwd="/there/is/none")
    with refused(AuthenticationException, says="invalid username: 'root123'"):
        run("whoami", user="root123")
    assert run("export KEPT=1; cd /tmp").exit_code == 0
    assert run("echo ${KEPT-gone}; pwd").stdout == "gone\n/home/user\n"


def timeouts(sandbox: Sandbox) -> None:
    started = time.monotonic()
    with refused(TimeoutException):
        sandbox.commands.run("echo early; sleep 60; touch /tmp/too-late", timeout=2)
    assert time.monotonic() - started < 20
    wait_until(lambda: "sleep 60" not in sandbox.commands.run("ps ax -o args").stdout)
    assert sandbox.commands.run("sleep 1; echo slow", timeout=0).stdout == "slow\n"


def in_the_background(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("echo begun; sleep 1; echo over; exit 4", background=True)
    assert handle.pid > 0
    pieces = [out for out, _, _ in handle if out]
    assert "".join(pieces) == "begun\nover\n"
    with refused(CommandExitException) as refusal:
        handle.wait()
    assert refusal.error.exit_code == 4

    handle = sandbox.commands.run("echo begun; sleep 300", background=True, envs={"TAG": "mine"}, cwd="/tmp")
    (info,) = [info for info in sandbox.commands.list() if info.pid == handle.pid]
    assert info.cmd == "/bin/bash"
    assert info.args == ["-l", "-c", "echo begun; sleep 300"]
    assert info.envs.get("TAG") == "mine"
    assert info.cwd == "/tmp"
    assert sandbox.commands.kill(handle.pid) is True
    with refused(CommandExitException) as refusal:
        handle.wait()
    assert refusal.error.exit_code != 0
    wait_until(lambda: handle.pid not in [info.pid for info in sandbox.commands.list()])
    assert sandbox.commands.kill(handle.pid) is False
    assert sandbox.commands.kill(999_999) is False

    handle = sandbox.commands.run("sleep 300", background=True)
    assert handle.kill() is True
    with refused(NotFoundException):
        sandbox.commands.connect(999_999)
    with refused(NotFoundException):
        sandbox.commands.send_stdin(999_999, "x")


def connecting(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("sleep 1.5; echo heard; exit 0", background=True)
    handle.disconnect()
    found = sandbox.commands.connect(handle.pid)
    assert found.pid == handle.pid
    heard = []
    assert found.wait(on_stdout=heard.append).stdout == "heard\n"
    assert heard == ["heard\n"]

    # It goes on when nobody listens.
    handle = sandbox.commands.run("sleep 1; echo done > /tmp/went-on", background=True)
    handle.disconnect()
    wait_until(lambda: sandbox.files.exists("/tmp/went-on"))

    # Two listen to one command.
    handle = sandbox.commands.run("sleep 1; seq 5", background=True)
    other = sandbox.commands.connect(handle.pid)
    heard = []
    thread = threading.Thread(target=lambda: heard.append(other.wait().stdout))
    thread.start()
    assert handle.wait().stdout == "1\n2\n3\n4\n5\n"
    thread.join(30)
    assert heard == ["1\n2\n3\n4\n5\n"]


def standard_input(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("read line; echo got $line", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "words\n")
    assert handle.wait().stdout == "got words\n"
    if since(2, 34):
        handle = sandbox.commands.run("cat; echo end", background=True, stdin=True)
        handle.send_stdin("a")
        sandbox.commands.send_stdin(handle.pid, b"\xc5\xbe" if since(2, 63) else "ž")
        handle.close_stdin()
        assert handle.wait().stdout == "ažend\n"
        handle = sandbox.commands.run("cat", background=True, stdin=True)
        sandbox.commands.close_stdin(handle.pid)
        assert handle.wait().stdout == ""
        assert sandbox.commands.run("cat; echo end").stdout == "end\n"  # there is no input: it does not wait for any
    if since(2, 63):
        handle = sandbox.commands.run("cat | wc -c", background=True, stdin=True)
        sandbox.commands.stream_input(handle.pid, (b"x" * 50_000 for _ in range(20)))
        handle.close_stdin()
        assert handle.wait().stdout == "1000000\n"
        quiet = sandbox.commands.run("echo unkept", retain_output=False)
        assert quiet.stdout is None
        with refused(NotFoundException):
            sandbox.commands.stream_input(999_999, ["x"])


def many_at_once(sandbox: Sandbox) -> None:
    handles = [sandbox.commands.run(f"sleep 0.5; echo {number}", background=True) for number in range(20)]
    assert [handle.wait().stdout for handle in handles] == [f"{number}\n" for number in range(20)]


def killed_underneath(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("sleep 300", background=True)
    sandbox.kill()
    started = time.monotonic()
    with refused(TimeoutException, says="ended before the stream completed"):
        handle.wait()
    assert time.monotonic() - started < 60


sandbox = Sandbox.create(timeout=300, envs={"SHARED": "sandbox"})
try:
    results(sandbox)
    callbacks(sandbox)
    surroundings(sandbox)
    timeouts(sandbox)
    in_the_background(sandbox)
    connecting(sandbox)
    standard_input(sandbox)
    many_at_once(sandbox)
    killed_underneath(sandbox)
finally:
    sandbox.kill()
done()
