"""`warren run` and `warren shell` as a user sees them, in real sandboxes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import warm_parent
from machine.cli_terminal import Terminal
from this_run import patience

_PATIENCE_S = patience(20.0)


@pytest.fixture(scope="module")
def environment(state_dir: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(sys.path),
        "WARREN_STATE_DIR": str(state_dir),
        "TERM": "xterm",
    }


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "warren.cli.main", *arguments]


@pytest.fixture
def warren(environment: dict[str, str]) -> Callable[..., "subprocess.CompletedProcess[bytes]"]:
    def run(*arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        return warm_parent.run(command(*arguments), input=stdin, capture_output=True, env=environment, timeout=120)

    return run


Warren = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(autouse=True)
def _nothing_left(state_dir: Path) -> Iterator[None]:
    yield
    assert list((state_dir / "sandboxes").glob("*")) == []


@pytest.mark.parametrize("environment_name", ["base", "host"])
def test_output_goes_to_the_right_streams_and_the_exit_code_is_passed_on(warren: Warren, environment_name: str) -> None:
    done = warren("run", "--env", environment_name, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")


def test_a_network_is_what_was_allowed_and_a_refusal_says_how_to_allow_it(warren: Warren) -> None:
    done = warren("run", "--allow", "one.example", "--", "getent", "hosts", "one.example")
    assert (done.returncode, done.stdout[:7]) == (0, b"198.18.")
    done = warren("run", "--allow", "one.example", "--", "getent", "hosts", "two.example")
    assert done.returncode == 2
    assert b"the network refused two.example" in done.stderr
    assert b"hint: --allow two.example" in done.stderr
    assert b"no_network is required" in warren("run", "--internet", "--require", "no_network", "--", "true").stderr


@pytest.mark.parametrize(
    ("line", "code"), [("exit 0", 0), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_exit_codes(warren: Warren, line: str, code: int) -> None:
    assert warren("run", "--", "sh", "-c", line).returncode == code


def test_a_program_that_is_not_there_is_127(warren: Warren) -> None:
    assert warren("run", "--", "no-such-program").returncode == 127


def test_stdin_is_passed_on(warren: Warren) -> None:
    sent = os.urandom(8 * 1024 * 1024)
    done = warren("run", "--", "cat", stdin=sent)
    assert done.returncode == 0
    assert done.stdout == sent


def test_for_programs_there_is_one_document_with_everything_that_was_said(warren: Warren) -> None:
    line = r"cat; echo err >&2; printf '\377'; head -c 3000000 /dev/zero | tr '\0' x; exit 4"
    done = warren("run", "--json", "--", "sh", "-c", line, stdin=b"in\n")
    document = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"], document["reason"]) == (4, 4, "exited")
    assert document["stdout"] == "in\n\ufffd" + "x" * 3_000_000
    assert document["stderr"] == "err\n"
    assert len(document["output"]) == len(document["stdout"]) + len(document["stderr"])


def test_for_programs_a_time_out_is_in_the_document_and_in_the_exit_code(warren: Warren) -> None:
    done = warren("run", "--json", "--timeout", "0.5", "--", "sleep", "60")
    assert done.returncode == 124
    assert json.loads(done.stdout)["reason"] == "timeout"


def test_a_shell_for_a_program_is_refused(warren: Warren) -> None:
    for extra, instead in (((), b"warren run --json"), (("--thread", "t"), b"warren exec --json")):
        done = warren("shell", "--json", *extra)
        assert (done.returncode, done.stdout) == (2, b"")
        assert instead in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(environment: dict[str, str], closed: str) -> None:
    line = f'"$@" {closed}'
    started = ["sh", "-c", line, "sh", *command("run", "--", "sh", "-c", "echo out; echo err >&2; exit 3")]
    done = warm_parent.run(started, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=60)
    assert done.returncode == 3
    assert b"Traceback" not in done.stderr


def test_all_of_a_long_output_comes(warren: Warren) -> None:
    done = warren("run", "--", "head", "-c", "50000000", "/dev/zero")
    assert len(done.stdout) == 50_000_000


def test_who_where_and_with_what(warren: Warren) -> None:
    done = warren("run", "-e", "A=b c", "--cwd", "/tmp", "--", "sh", "-c", 'echo "$(whoami) $(pwd) $A $(hostname)"')
    assert done.stdout == b"sandboxuser /tmp b c sandbox\n"


def test_a_time_out_is_124_and_says_so(warren: Warren) -> None:
    done = warren("run", "--timeout", "0.5", "--", "sleep", "60")
    assert done.returncode == 124
    assert b"ended after 0.5 s" in done.stderr


def test_out_of_memory_is_said(warren: Warren) -> None:
    done = warren("run", "--memory", "128", "--", "python3", "-c", "x = bytearray(400 << 20); print(len(x))")
    assert done.returncode == 137
    assert b"out of memory" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--user", "nobody-here", "--", "true"], b"nobody-here"),
        (["--cwd", "/no/such", "--", "true"], b"working directory"),
        (["--require", "guest_kernel", "--", "true"], b"guest_kernel"),
    ],
)
def test_what_cannot_be_is_one_sentence(warren: Warren, arguments: list[str], message: bytes) -> None:
    done = warren("run", *arguments)
    assert done.returncode == 125
    assert message in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_and_the_sandbox(environment: dict[str, str], number: int) -> None:
    process = warm_parent.Popen(
        command("run", "--", "sh", "-c", "echo ready; sleep 600"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(_PATIENCE_S) == 128 + number


def test_a_reader_that_goes_away_ends_it_quietly(environment: dict[str, str]) -> None:
    process = warm_parent.Popen(
        command("run", "--", "yes"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1000)
        process.stdout.close()
        assert process.wait(_PATIENCE_S) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""


@pytest.fixture
def terminal(environment: dict[str, str]) -> Iterator[Terminal]:
    terminal = Terminal(command("shell"), environment, rows=30, columns=100)
    terminal.expect("$ ")
    yield terminal
    terminal.close()


def test_a_shell_knows_its_terminal_and_hands_its_exit_code_on(terminal: Terminal) -> None:
    terminal.type("stty size; tty; echo $TERM\r")
    terminal.expect("30 100")
    terminal.expect("/dev/pts/")
    terminal.expect("xterm")
    terminal.type("exit 9\r")
    terminal.drain()
    assert terminal.process.wait(_PATIENCE_S) == 9
    assert terminal.settings == terminal.before


def test_run_with_a_terminal_takes_the_flags_that_users_of_docker_type(environment: dict[str, str]) -> None:
    line = "tty; stty size; read a; echo $NAME-$a; pwd"
    flags = ("--rm", "-it", "-m", "256m", "-e", "NAME=x", "-w", "/tmp", "-u", "nobody", "-E", "host", "--timeout", "60")
    terminal = Terminal(command("run", *flags, "sh", "-c", line), environment, rows=30, columns=100)
    try:
        terminal.expect("/dev/pts/")
        terminal.expect("30 100")
        terminal.type("typed\r")
        terminal.expect("x-typed")
        terminal.expect("/tmp")
        terminal.drain()
        assert terminal.process.wait(_PATIENCE_S) == 0
    finally:
        terminal.close()


def test_a_new_size_reaches_the_program(terminal: Terminal) -> None:
    terminal.type("trap 'stty size' WINCH; echo trap is s''et\r")  # the quotes tell what it prints from what was typed
    terminal.expect("trap is set\r\n")
    terminal.resize(41, 132)
    terminal.process.send_signal(signal.SIGWINCH)
    time.sleep(0.3)
    terminal.type("\r")
    terminal.expect("41 132")


def test_ctrl_c_goes_to_the_program_and_not_to_warren(terminal: Terminal) -> None:
    terminal.type("sleep 600\r")
    terminal.expect("sleep 600")
    time.sleep(0.3)
    terminal.type("\x03")
    terminal.expect("$ ")
    terminal.type("echo code=$?\r")
    terminal.expect("code=130")


def test_a_full_screen_program_works(terminal: Terminal) -> None:
    terminal.type("seq 1000 | less\r")
    terminal.expect("\x1b[?1049h")
    terminal.type("G")
    terminal.expect("1000")
    terminal.type("q")
    terminal.expect("\x1b[?1049l")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_put_back_when_a_signal_ends_it(terminal: Terminal, number: int) -> None:
    assert terminal.settings != terminal.before
    terminal.process.send_signal(number)
    terminal.drain()
    assert terminal.process.wait(_PATIENCE_S) == 128 + number
    assert terminal.settings == terminal.before


def test_killing_it_outright_ends_the_sandbox_and_the_next_one_sweeps_up(
    environment: dict[str, str], warren: Warren, state_dir: Path
) -> None:
    running = warm_parent.Popen(
        command("run", "--env", "host", "--", "sh", "-c", "echo up; sleep 60"), env=environment, stdout=subprocess.PIPE
    )
    assert running.stdout is not None
    assert running.stdout.readline() == b"up\n"
    (left,) = list((state_dir / "sandboxes").iterdir())
    pid = int((left / "pid").read_text())
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    running.stdout.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()
    assert warren("run", "--env", "host", "--", "true").returncode == 0
    assert not left.exists()
