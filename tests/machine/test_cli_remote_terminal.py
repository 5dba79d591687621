"""`warren shell`, `warren exec -t` and `warren ps` in a real terminal, against a real server."""

import os
import signal
import subprocess
import time

import click
import pytest
import warm_parent
from machine.cli_terminal import Open
from machine.remote_cli import RemoteCli
from this_run import patience

_PATIENCE_S = patience(20.0)


def test_a_shell_in_a_session_knows_its_terminal_and_hands_its_exit_code_on(
    cli: RemoteCli, session: str, opened: Open
) -> None:
    cli.say("exec", session, "--", "touch", "here-before")
    terminal = opened("shell", "--session", session[:12])
    terminal.expect("$ ")
    assert terminal.settings != terminal.before
    terminal.type("stty size; tty; echo $TERM; ls\r")
    for text in ("30 100", "/dev/pts/", "xterm", "here-before"):
        terminal.expect(text)
    terminal.type("exit 9\r")
    terminal.drain()
    assert terminal.process.wait(_PATIENCE_S) == 9
    assert terminal.settings == terminal.before
    assert cli.document("logs", session)["processes"] == []


def test_a_thread_gets_its_session(cli: RemoteCli, opened: Open) -> None:
    terminal = opened("shell", "--thread", "typed", "--cwd", "/tmp")
    terminal.expect("$ ")
    terminal.type("pwd > /workspace/where; exit\r")
    terminal.drain()
    assert terminal.process.wait(_PATIENCE_S) == 0
    assert cli.say("exec", "--thread", "typed", "--", "cat", "/workspace/where") == "/tmp\n"
    cli.say("kill", "--thread", "typed")


@pytest.mark.extended
def test_a_new_size_reaches_the_program(session: str, opened: Open) -> None:
    terminal = opened("shell", "--session", session)
    terminal.expect("$ ")
    terminal.type("trap 'stty size' WINCH; echo set\r")
    terminal.expect("set\r\n")
    terminal.resize(41, 132)
    terminal.process.send_signal(signal.SIGWINCH)
    for _ in range(100):  # bash runs the trap with the next command after the signal
        terminal.type("\r")
        terminal.drain()
        if b"41 132" in terminal.seen:
            break
    terminal.expect("41 132")


def test_ctrl_c_goes_to_the_program_and_not_to_warren(session: str, opened: Open) -> None:
    terminal = opened("shell", "--session", session)
    terminal.expect("$ ")
    terminal.type("sleep 600\r")
    terminal.expect("sleep 600")
    time.sleep(0.3)
    terminal.type("\x03")
    terminal.expect("$ ")
    terminal.type("echo code=$?\r")
    terminal.expect("code=130")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_shell_and_puts_the_terminal_back(
    cli: RemoteCli, session: str, opened: Open, number: int
) -> None:
    terminal = opened("shell", "--session", session)
    terminal.expect("$ ")
    terminal.type("sleep 600\r")
    terminal.expect("sleep 600")
    terminal.process.send_signal(number)
    terminal.drain()
    assert terminal.process.wait(_PATIENCE_S) == 128 + number
    assert terminal.settings == terminal.before
    assert cli.document("logs", session)["processes"] == []
    assert cli.run("exec", session, "--", "sh", "-c", "grep -l sleep /proc/[0-9]*/comm").stdout == b""


def test_a_session_that_is_killed_ends_the_shell_with_a_sentence(cli: RemoteCli, opened: Open) -> None:
    session_id = cli.say("create").strip()
    terminal = opened("shell", session_id)
    terminal.expect("$ ")
    cli.say("kill", session_id)
    terminal.expect("warren: ")
    terminal.drain()
    assert terminal.process.wait(_PATIENCE_S) == 125
    assert terminal.settings == terminal.before


def test_exec_with_a_terminal(session: str, opened: Open) -> None:
    terminal = opened("exec", "-it", session, "-e", "NAME=x", "--", "sh", "-c", "tty; stty size; read a; echo $NAME-$a")
    terminal.expect("/dev/pts/")
    terminal.expect("30 100")
    terminal.type("typed\r")
    terminal.expect("x-typed")
    terminal.drain()
    assert terminal.process.wait(_PATIENCE_S) == 0
    assert terminal.settings == terminal.before


def test_exec_with_a_terminal_has_a_time_out_too(session: str, opened: Open) -> None:
    terminal = opened("exec", "-t", "--timeout", "0.5", session, "--", "sleep", "600")
    terminal.expect("ended after 0.5 s")
    terminal.drain()
    assert terminal.process.wait(_PATIENCE_S) == 124


def test_ctrl_c_in_a_terminal_ends_a_plain_exec(cli: RemoteCli, session: str) -> None:
    """Without -t the terminal stays as it is: Ctrl-C is a signal for `warren`."""
    argv = cli.argv("exec", session, "--", "sh", "-c", "echo ready; sleep 600")
    with warm_parent.Popen(argv, env=cli.environ, stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(_PATIENCE_S) == 130


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--session", "ses_1", "--thread", "t"], "not both"),
        (["--session", "ses_1", "--memory", "512"], "--memory is for a fresh sandbox"),
        (["ses_1", "--env", "base"], "--environment is for a fresh sandbox"),
        (["ses_1", "--session", "ses_1"], "not both"),
        (["--url", "http://localhost:1"], "needs SESSION or --thread"),
    ],
)
def test_mistakes(opened: Open, arguments: list[str], message: str) -> None:
    terminal = opened("shell", *arguments)
    terminal.expect(message)
    terminal.drain()
    assert terminal.process.wait(_PATIENCE_S) == 2


def test_ps_fits_into_80_columns_and_has_colours_on_a_terminal_alone(cli: RemoteCli, opened: Open) -> None:
    thread = "a-thread-with-a-long-name-" + "x" * 40
    cli.say("create", "--thread", thread, "-m", "1.5g")

    def seen(columns: int = 80, **environ: str) -> list[str]:
        terminal = opened("ps", columns=columns, **environ)
        assert terminal.process.wait(_PATIENCE_S) == 0
        terminal.drain()
        return terminal.seen.decode().splitlines()

    shown = seen()
    plain = [click.unstyle(line) for line in shown]
    assert max(map(len, plain)) <= 80
    assert plain[0].split() == ["SESSION", "THREAD", "ENVIRONMENT", "LIMITS", "STATE", "AGE", "ENDS", "IN"]
    (row,) = [line for line in shown if " a-thread" in line]
    assert "…  base  " in row
    assert " 1.5G/" in row
    assert "  \x1b[32mrunning\x1b[0m  " in row
    for uncoloured in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in "".join(seen(**uncoloured))
    piped = cli.say("ps")
    assert "\x1b" not in piped
    assert thread in piped
    assert [click.unstyle(line).split()[:2] for line in seen(300)] == [line.split()[:2] for line in piped.splitlines()]
    cli.say("kill", "--thread", thread)
