"""The runner of Java cells, without a sandbox, with the JDK of this machine."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runners.runner_process import RUNNERS, Runner, RunnerEnded

JAVA = ("sh", str(RUNNERS / "java" / "main.sh"))

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """One JVM for all tests that do not end it: it takes a while to start."""
    with Runner(JAVA, tmp_path_factory.mktemp("java"), {"LC_ALL": "C"}) as runner:
        yield runner


class TestCells:
    def test_a_cell_sees_what_earlier_ones_did(self, runner: Runner) -> None:
        assert runner.hello["version"].split(".")[0].isdecimal()
        code = "int x = 5;\nint f(int a) {\n  return a + x;\n}\nclass Pair { int a = 1; }\nenum Kind { ONE, TWO }"
        assert runner.run(code).end["error"] is None
        assert runner.run("f(new Pair().a)").main == {"type": "result", "is_main_result": True, "text": "6"}
        assert runner.run("int x = 7; f(Kind.values().length)").text == "9"

    @pytest.mark.parametrize(
        ("code", "stdout", "text"),
        [
            ('System.out.println("Hello, World!")', "Hello, World!\n", None),
            ('System.out.print("é😀 \\\\ \\"")', 'é😀 \\ "', None),
            ('"é😀"', "", '"é😀"'),
            ("1 + 1;", "", "2"),
            ("1 + 1;\n2 + 2", "", "4"),
            ("int y = 3;", "", None),
            ("new int[] {1, 2}", "", "int[2] { 1, 2 }"),
            ("List.of(1, 2).stream().map(n -> n * 2).collect(Collectors.toList())", "", "[2, 4]"),
            ("if (true) {\n  System.out.println(1);\n} else {\n  System.out.println(2);\n}", "1\n", None),
            ("for (int i = 0; i < 2; i++) System.out.println(i);\n// the end", "0\n1\n", None),
            ("", "", None),
            ("/* nothing */", "", None),
        ],
    )
    def test_the_value_of_a_last_expression_is_shown(
        self, runner: Runner, code: str, stdout: str, text: str | None
    ) -> None:
        cell = runner.run(code)
        assert (cell.stdout, cell.text, cell.error) == (stdout, text, None)

    def test_the_environment_holds_for_one_cell(self, runner: Runner) -> None:
        code = 'System.getenv("A") + System.getProperty("A")'
        assert runner.run(code, env={"A": 'é "\\'}).text == r'"é \"\\é \"\\"'
        assert runner.run(code).text == '"nullnull"'
        child = 'var child = new ProcessBuilder("sh", "-c", "echo $A; ls -l /proc/self/fd").inheritIO();\n'
        seen = runner.run(child + "child.environment(); child.start().waitFor();", env={"A": "b"}).stdout
        assert seen.startswith("b\n")
        assert "socket" not in seen

    def test_long_texts_are_cut_and_all_of_a_long_output_arrives(self, runner: Runner) -> None:
        cell = runner.run('for (int i = 0; i < 20000; i++) System.out.println("0123456789");\n"t".repeat(2_000_000)')
        assert len(cell.stdout) == 220_000
        assert cell.main is not None
        assert (cell.main["cut"], len(cell.main["text"])) == (["text"], 1024 * 1024)


class TestErrors:
    def test_an_exception_has_its_calls_and_lines(self, runner: Runner) -> None:
        runner.run("int depth(int a) {\n  return a / 0;\n}")
        cell = runner.run('System.out.println("before");\n\nint kept = 1;\ndepth(2)')
        assert cell.stdout == "before\n"
        assert cell.error is not None
        assert (cell.error["name"], cell.error["value"]) == ("ArithmeticException", "/ by zero")
        first, *calls = cell.error["traceback"].split("\n\tat ")
        assert first == "java.lang.ArithmeticException: / by zero"
        number = cell.end["execution_count"]
        assert calls == [f"depth(cell_{number - 1}.java:2)", f"(cell_{number}.java:4)"]
        assert runner.run("kept").text == "1"
        caused = 'throw new IllegalStateException("é", new RuntimeException("why"))'
        error = runner.run(caused).error
        assert error is not None
        assert "Caused by: java.lang.RuntimeException: why" in error["traceback"]

    def test_a_long_message_is_cut(self, runner: Runner) -> None:
        error = runner.run('throw new RuntimeException("é".repeat(2_000_000))').error
        assert error is not None
        assert [len(error[part]) // 1000 for part in ("value", "traceback")] == [16, 131]
        assert "characters are left out here" in error["traceback"]

    def test_code_that_does_not_compile_says_where_and_why(self, runner: Runner) -> None:
        cell = runner.run('System.out.println("before");\nint z = nowhere + 1;\nSystem.out.println("after");')
        assert cell.error is not None
        assert (cell.stdout, cell.error["name"]) == ("before\n", "CompilationError")
        line = f"cell_{cell.end['execution_count']}.java:2: "
        assert cell.error["value"].startswith(f"{line}cannot find symbol")
        assert "nowhere" in cell.error["value"]
        for code in ("int = 3;", "class {", "Nowhere n;"):
            error = runner.run(code).error
            assert error is not None
            assert error["name"] == "CompilationError"
            assert ".java:1" in error["traceback"] or "Nowhere" in error["traceback"]
        assert runner.run("1").text == "1"


@pytest.mark.parametrize(
    "code",
    [
        'System.out.println("go"); while (true) {}',
        'System.out.println("go"); Thread.sleep(60_000);',
        'System.out.println("go"); while (true) { try { Thread.sleep(10); } catch (Exception e) { } }\nint never = 1;',
    ],
)
def test_an_interrupt_ends_the_cell_and_keeps_the_state(runner: Runner, code: str) -> None:
    runner.run("int held = 1;")
    for _ in range(2):
        error = runner.run(code, interrupt_at="go", again_s=1).error
        assert error is not None
        assert error["name"] == "Interrupted"
        assert runner.run("held").text == "1"
    runner.interrupt()  # nothing runs
    time.sleep(0.2)
    assert runner.run("held").text == "1"


def test_exit_ends_the_context(tmp_path: Path) -> None:
    with Runner(JAVA, tmp_path) as runner, pytest.raises(RunnerEnded) as ended:
        runner.run('System.out.println("bye"); System.exit(3);')
    assert (ended.value.code, ended.value.cell.stdout) == (3, "bye\n")


def test_an_image_without_a_jdk_has_no_java(tmp_path: Path) -> None:
    (tmp_path / "java").write_text("#!/bin/sh\n")
    (tmp_path / "java").chmod(0o755)
    assert subprocess.run(["/bin/sh", JAVA[1]], env={"PATH": str(tmp_path)}, check=False).returncode == 127


def test_a_keeper_that_is_gone_ends_it(tmp_path: Path) -> None:
    with Runner(JAVA, tmp_path) as runner:
        runner.hang_up()
        assert runner.process.wait(60) == 0
