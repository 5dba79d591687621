"""The runner of bash cells, without a sandbox, with the bash of this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from runners.runner_process import RUNNERS, Runner, RunnerEnded

BASH = ("bash", str(RUNNERS / "bash" / "main.sh"))


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    with Runner(BASH, tmp_path, {"LC_ALL": "C.UTF-8"}) as runner:
        yield runner


def exit_code(runner: Runner, code: str) -> str | None:
    error = runner.run(code).error
    assert error is None or (error["name"], error["traceback"]) == ("ExitCode", "")
    return error and error["value"]


class TestCells:
    def test_a_cell_sees_what_earlier_ones_did(self, runner: Runner, tmp_path: Path) -> None:
        assert runner.hello["version"].count(".") == 2
        (tmp_path / "sub").mkdir()
        runner.run(
            "cd sub; a=1; declare -a list=(1 'b c'); readonly fixed=2; f() { echo f$1; }; alias hi='echo hello';"
            "shopt -s extglob; exec 5>log; umask 077; export out=3"
        )
        cell = runner.run(
            "echo $PWD $a ${list[1]} $fixed; f 1; hi; echo to five >&5; cat log; umask; bash -c 'echo $out'"
        )
        assert cell.stdout == f"{tmp_path}/sub 1 b c 2\nf1\nhello\nto five\n0077\n3\n"
        assert cell.end == {"execution_count": 2, "error": None}

    def test_the_status_of_the_last_command_counts(self, runner: Runner) -> None:
        assert exit_code(runner, "false; true") is None
        assert exit_code(runner, "(exit 3)") == "3"
        assert exit_code(runner, "no-such-program") == "127"
        assert exit_code(runner, "") is None
        assert exit_code(runner, "# nothing") is None

    @pytest.mark.parametrize(
        ("code", "stdout"),
        [
            ("echo é😀 '\"q\"' '\\' $'\\t|'", 'é😀 "q" \\ \t|\n'),
            ("cat <<EOF\na\n  b\nEOF", "a\n  b\n"),
            ("echo a \\\n  b", "a b\n"),
            ("echo last\\", "last\n"),
            ('echo "a!b" !!', "a!b !!\n"),
            ("read line || echo none", "none\n"),
            ("echo /etc/host[s] {1..3}", "/etc/hosts 1 2 3\n"),
            ("IFS=,; x=a,b; echo $x", "a b\n"),
        ],
    )
    def test_code_arrives_as_it_was_written(self, runner: Runner, code: str, stdout: str) -> None:
        cell = runner.run(code)
        assert (cell.stdout, cell.error) == (stdout, None)

    def test_the_environment_holds_for_one_cell(self, runner: Runner) -> None:
        runner.run("plain=1; export B=2")
        cell = runner.run('echo "$A|$B|$plain"; printenv A B plain', env={"A": 'é "\\\n', "B": "", "plain": "4"})
        assert cell.stdout == 'é "\\\n||4\né "\\\n\n\n4\n'
        assert runner.run("echo ${A-unset} $B $plain; printenv B plain").stdout == "unset 2 1\n2\n"

    def test_options_hold_in_cells_only(self, runner: Runner) -> None:
        runner.run("set -ux; set -o pipefail")
        cell = runner.run("echo $-; set +x")
        assert ("u" in cell.stdout, "__warren" in cell.stderr) == (True, False)
        assert exit_code(runner, "false | true") == "1"
        cell = runner.run("echo $undefined; echo not reached")
        assert (cell.stdout, "undefined: unbound variable" in cell.stderr) == ("", True)


class TestOutput:
    def test_all_of_a_long_output_arrives(self, runner: Runner) -> None:
        cell = runner.run("yes 0123456789 | head -n 200000; head -c 1000000 /dev/zero | tr '\\0' x >&2")
        assert (len(cell.stdout), len(cell.stderr)) == (2_200_000, 1_000_000)

    def test_what_looks_like_frames_is_text(self, runner: Runner) -> None:
        cell = runner.run("printf 'x\\0\\0\\0\\2{}'; printf 'r\\0\\0\\0\\2{}' >&2; echo forged >&3")
        assert (cell.stdout, cell.stderr[:7]) == ("x\0\0\0\2{}", "r\0\0\0\2{}")
        assert "3: Bad file descriptor" in cell.stderr

    def test_children_do_not_have_the_socket(self, runner: Runner) -> None:
        assert (
            runner.run("ls -l /proc/self/fd; (ls -l /proc/self/fd); ls -l /proc/self/fd | cat").stdout.count("socket")
            == 0
        )

    def test_background_jobs_stay(self, runner: Runner) -> None:
        runner.run("{ sleep 0.2; echo later; } & job=$!")
        cell = runner.run("wait $job; echo $?")
        assert cell.stdout == "later\n0\n"


class TestEnds:
    def test_a_syntax_error_shows_its_line_and_nothing_ran(self, runner: Runner) -> None:
        cell = runner.run("echo no\nif true; then\n  done")
        assert cell.error is not None
        assert (cell.stdout, cell.error["name"]) == ("", "SyntaxError")
        assert cell.error["value"].startswith("line 3: syntax error near unexpected token `done'")
        unfinished = runner.run("echo 'a").error
        assert unfinished is not None
        assert "unexpected EOF while looking for matching" in unfinished["value"]
        assert runner.run("echo ok").stdout == "ok\n"

    def test_exit_ends_the_cell_and_keeps_the_state(self, runner: Runner) -> None:
        assert exit_code(runner, "a=1; f() { local a=2; exit 4; echo no; }; f; echo no\necho no") == "4"
        assert exit_code(runner, "(exit 5); exit") == "5"
        assert exit_code(runner, "exit 0; false") is None
        assert exit_code(runner, "echo ${undefined:?}\nfalse\necho no") == "1"
        assert runner.run("echo $a").stdout == "1\n"

    def test_errexit_ends_the_cell_and_keeps_the_state(self, runner: Runner, tmp_path: Path) -> None:
        runner.run("a='1 \"é'; b=(1 2); f() { echo f; }; alias hi='echo hello'; cd /; export c=3; shopt -s nullglob")
        for _ in range(3):
            cell = runner.run("set -euo pipefail\necho before\nfalse | true\necho after")
            assert (cell.stdout, cell.error and cell.error["value"]) == ("before\n", "1")
        cell = runner.run("echo $a ${b[1]} $PWD $-; f; hi; printenv c; shopt nullglob; true || false")
        assert cell.stdout.split() == ["1", '"é', "2", "/", cell.stdout.split()[4], "f", "hello", "3", "nullglob", "on"]
        assert "e" in cell.stdout.split()[4]
        assert cell.end["execution_count"] == 5
        assert "socket" not in runner.run("ls -l /proc/self/fd").stdout

    def test_a_trap_of_the_user_runs_at_exit(self, runner: Runner) -> None:
        runner.run("trap 'echo bye' EXIT; a=1")
        assert runner.run("exit 0").stdout == "bye\n"
        assert runner.run("trap 'echo bye 2' EXIT; set -e; false").stdout == "bye 2\n"
        assert runner.run("echo $a; (trap 'echo sub' EXIT; exit 0)").stdout == "1\nsub\n"

    def test_the_shell_can_be_left(self, runner: Runner) -> None:
        with pytest.raises(RunnerEnded) as ended:
            runner.run("echo bye; exec sh -c 'exit 3'")
        assert (ended.value.code, ended.value.cell.stdout) == (3, "bye\n")


@pytest.mark.parametrize(
    "code",
    [
        "echo go; while :; do :; done; echo no",
        "echo go\nsleep 60\necho no",
        "f() { local kept=2; echo go; while :; do sleep 0.01; done; }; f; echo no",
        "echo go; x=$(sleep 60); echo no",
        "echo go; bash -c 'sleep 60; echo no'; echo no",
        "echo go; sleep 60 & wait; echo no",
        "set -e; echo go; read line < <(sleep 60); echo no",
    ],
)
def test_an_interrupt_ends_the_cell_and_keeps_the_state(runner: Runner, code: str) -> None:
    runner.run("kept=1; f() { :; }")
    for _ in range(2):
        cell = runner.run(code, interrupt_at="go", again_s=1)
        assert cell.error is not None
        assert (cell.stdout, cell.error["name"]) == ("go\n", "Interrupted")
        assert runner.run("echo $kept").stdout == "1\n"


def test_two_hundred_cells(runner: Runner) -> None:
    for number in range(200):
        assert runner.run(f"v{number}={number}; echo $v{number}").stdout == f"{number}\n"
    assert runner.memory_mb() < 16


def test_long_code(runner: Runner) -> None:
    assert runner.run("# " + "é\n# " * 5000 + "\necho end").stdout == "end\n"
