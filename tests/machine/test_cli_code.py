"""`warren code` and `warren repl`: the real command against a real server, the second in a real terminal."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from machine.cli_terminal import Open
from machine.remote_cli import RemoteCli
from this_run import patience

from warren.cli.repl import is_incomplete_python, join_lines

_PATIENCE_S = patience(20.0)
_CHART = rb"""
class Chart:
    def _repr_png_(self): return b"\x89PNG\r\n\x1a\n of a chart"
display(Chart())
"""


# -- warren code


def test_the_interpreter_of_a_session_keeps_its_variables(cli: RemoteCli, session: str, tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text("import sys\nx = 20\nprint('out')\nprint('err', file=sys.stderr)\n")
    done = cli.run("code", "--session", session[:12], "first.py", cwd=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"out\n", b"err\n")
    assert cli.say("code", "--session", session, "-", stdin=b"x + 22") == "42\n"
    assert cli.say("code", "--session", session, "-l", "bash", "-e", "A=b", "-", stdin=b"echo $A") == "b\n"


def test_without_a_session_a_fresh_one_is_made_and_ended(cli: RemoteCli) -> None:
    before = cli.say("ps", "-q")
    assert cli.say("code", "-l", "bash", "-", stdin=b"hostname") == "sandbox\n"
    assert cli.say("ps", "-q") == before
    assert cli.say("code", "--thread", "cells", "-", stdin=b"x = 1") == ""
    assert cli.say("code", "--thread", "cells", "-", stdin=b"x") == "1\n"
    cli.say("kill", "--thread", "cells")


def test_an_error_of_the_code_is_exit_code_1_and_a_time_out_124(cli: RemoteCli, session: str) -> None:
    failed = cli.run("code", "--session", session, "-", stdin=b"print('before')\n1 / 0")
    assert (failed.returncode, failed.stdout) == (1, b"before\n")
    assert failed.stderr.decode().rstrip().splitlines()[-1] == "ZeroDivisionError: division by zero"
    late = cli.run("code", "--session", session, "--timeout", "0.5", "-", stdin=b"import time\ntime.sleep(60)")
    assert (late.returncode, b"--timeout S" in late.stderr) == (124, True)
    gone = cli.run("code", "--session", session, "-", stdin=b"import os; os._exit(4)")
    assert (gone.returncode, b"the interpreter was lost (exited)" in gone.stderr) == (1, True)


def test_pictures_are_saved_where_the_user_wants_them(cli: RemoteCli, session: str, tmp_path: Path) -> None:
    for name in ("picture-1.png", "picture-2.png"):
        done = cli.run("code", "--session", session, "--save", "charts", "-", stdin=_CHART, cwd=str(tmp_path))
        assert (done.returncode, done.stdout, done.stderr.decode()) == (0, b"", f"[charts/{name}]\n")
        assert (tmp_path / "charts" / name).read_bytes() == b"\x89PNG\r\n\x1a\n of a chart"
    done = cli.run("code", "--session", session, "-", stdin=_CHART)
    assert (done.returncode, b"--save DIR" in done.stderr) == (0, True)


def test_programs_get_one_document(cli: RemoteCli, session: str) -> None:
    done = cli.run("code", "--session", session, "--json", "-", stdin=b"print('a')\n[1, 2]")
    execution = json.loads(done.stdout)
    assert ("".join(execution["logs"]["stdout"]), execution["results"][0]["text"]) == ("a\n", "[1, 2]")
    assert (execution["error"], execution["context_id"]) == (None, "ctx_python")


def test_ctrl_c_interrupts_the_code_and_its_interpreter_keeps_its_variables(cli: RemoteCli, session: str) -> None:
    cli.say("code", "--session", session, "-", stdin=b"x = 'kept'")
    argv = ("code", "--session", session, "/dev/stdin")
    running = cli.start(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write(b"import time\nprint('begun', flush=True)\ntime.sleep(60)")
    running.stdin.close()
    assert running.stdout.readline() == b"begun\n"
    running.send_signal(signal.SIGINT)
    assert running.wait(_PATIENCE_S) == 130
    running.stdout.close()
    assert cli.say("code", "--session", session, "-", stdin=b"x") == "'kept'\n"


def test_wrong_usage_is_told(cli: RemoteCli, session: str) -> None:
    assert b"no language 'cobol'" in cli.run("code", "--session", session, "-l", "cobol", "-").stderr
    for words in (
        ("code", "/nowhere.py"),
        ("code", "--session", session, "--thread", "t", "-"),
        ("code", "--session", session, "-E", "base", "-"),
        ("code", "--replace-lost", "-"),
        ("repl",),
    ):
        assert cli.run(*words).returncode == 2, words


# -- warren repl


def test_a_repl_asks_for_more_lines_and_keeps_variables(cli: RemoteCli, opened: Open) -> None:
    terminal = opened("repl", "python")
    terminal.expect("Ctrl-D ends it")
    terminal.expect(">>> ")
    terminal.type("for i in range(3):\r")
    terminal.expect("... ")
    terminal.type("    print('line', i)\r")
    terminal.expect("... ")
    terminal.type("\r")
    terminal.expect("line 0\r\nline 1\r\nline 2\r\n")
    terminal.expect(">>> ")
    terminal.type("i + 40\r")
    terminal.expect("42")
    terminal.type("1 / 0\r")
    terminal.expect("ZeroDivisionError: division by zero")
    terminal.expect(">>> ")
    terminal.type("\x04")
    terminal.drain()
    assert terminal.process.wait(_PATIENCE_S) == 0
    assert cli.say("ps", "-q") == ""


def test_ctrl_c_interrupts_what_runs_in_a_repl_and_clears_what_was_typed(opened: Open) -> None:
    terminal = opened("repl")
    terminal.expect(">>> ")
    terminal.type("x = 'kept'\r")
    terminal.expect(">>> ")
    terminal.type("import time; print('be' + 'gun'); time.sleep(60)\r")
    terminal.expect("begun")
    terminal.process.send_signal(signal.SIGINT)  # what Ctrl-C does in a terminal that belongs to the session
    terminal.expect("KeyboardInterrupt")
    terminal.expect(">>> ")
    terminal.type("half a li")
    terminal.drain()  # Python does not see a signal that comes just before it waits for the next key
    terminal.process.send_signal(signal.SIGINT)
    terminal.expect(">>> ")
    terminal.type("x + '!'\r")
    terminal.expect("kept!")
    terminal.type("exit\r")
    terminal.drain()
    assert terminal.process.wait(_PATIENCE_S) == 0


def test_a_repl_in_a_session_sees_the_variables_that_are_there_and_saves_pictures(
    cli: RemoteCli, session: str, opened: Open, tmp_path: Path
) -> None:
    cli.say("code", "--session", session, "-", stdin=b"colour = 'red'\n" + _CHART.replace(b"display(Chart())", b""))
    terminal = opened("repl", "python", "--session", session, "--save", str(tmp_path))
    terminal.expect(">>> ")
    terminal.type("colour.upper()\r")
    terminal.expect("RED")
    terminal.type("Chart()\r")
    terminal.expect("picture-1.png]")
    assert (tmp_path / "picture-1.png").exists()
    terminal.type("exit\r")
    terminal.drain()
    assert terminal.process.wait(_PATIENCE_S) == 0
    assert cli.say("code", "--session", session, "-", stdin=b"colour") == "'red'\n"


def test_other_languages_go_on_after_a_backslash_and_take_pasted_lines(opened: Open) -> None:
    terminal = opened("repl", "bash")
    terminal.expect("bash> ")
    terminal.type("echo one \\\r")
    terminal.expect("... ")
    terminal.type("two\r")
    terminal.expect("one two")
    terminal.expect("bash> ")
    for line in (":paste", "for i in 1 2; do", "echo n$i", "done", ":end"):
        terminal.type(f"{line}\r")
    terminal.expect("n1\r\nn2\r\n")
    terminal.expect("bash> ")
    terminal.drain()
    terminal.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE_S
    while terminal.process.poll() is None and time.monotonic() < deadline:
        terminal.drain()
    assert terminal.process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("source", "is_incomplete"),
    [
        ("x = 1", False),
        ("def f():", True),
        ("def f():\n    return 1", True),
        ("def f():\n    return 1\n", False),
        ("x = (1,", True),
        ("async with a:", True),
        ("await a", False),
        ("x = = 1", False),
        ("!ls", False),
        ("%time x", False),
        ("1 is 1", False),
        ("", False),
    ],
)
def test_a_statement_that_goes_on_is_told_from_one_that_is_wrong(source: str, is_incomplete: bool) -> None:
    assert is_incomplete_python(source) is is_incomplete


def test_a_backslash_at_the_end_of_a_line_is_for_bash_alone() -> None:
    assert join_lines("bash", ["a \\", "b"]) == "a \\\nb"
    assert join_lines("javascript", ["a(\\", "b)"]) == "a(\nb)"
