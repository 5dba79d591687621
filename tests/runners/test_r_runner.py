"""The runner of R cells, without a sandbox, with the R of this machine."""

import base64
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from runners.runner_process import RUNNERS, Runner, RunnerEnded

R = ("sh", str(RUNNERS / "r" / "main.sh"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with new_runner(tmp_path_factory.mktemp("r")) as runner:
        yield runner


@pytest.fixture
def runner(shared: Runner) -> Runner:
    """One R for all tests that do not end it: it takes a while to start."""
    shared.run("rm(list = ls())")
    return shared


def new_runner(folder: Path) -> Runner:
    return Runner(R, folder, {"LC_ALL": "C.UTF-8", "TMPDIR": str(folder)})


class TestCells:
    def test_a_cell_sees_what_earlier_ones_did(self, runner: Runner) -> None:
        assert runner.hello["version"].count(".") == 2
        runner.run("x <- 5; f <- function(a) a + x")
        assert runner.run("f(1)").main == {"type": "result", "is_main_result": True, "text": "[1] 6"}
        assert runner.run("ls()").text == '[1] "f" "x"'

    @pytest.mark.parametrize(
        ("code", "stdout", "text"),
        [
            ("1:3\nTRUE\n'last'", "[1] 1 2 3\n[1] TRUE\n", '[1] "last"'),
            ("x <- 1", "", None),
            ("invisible(3)", "", None),
            ("NULL", "", "NULL"),
            ("cat('é😀', \"q\", '\\\\', '\\n')", "é😀 q \\ \n", None),
            ("'é😀'", "", '[1] "é😀"'),
            ("", "", None),
            ("# nothing", "", None),
            ("list(a = 1)", "", "$a\n[1] 1\n"),
        ],
    )
    def test_visible_values_are_shown(self, runner: Runner, code: str, stdout: str, text: str | None) -> None:
        cell = runner.run(code)
        assert (cell.stdout, cell.text, cell.error) == (stdout, text, None)

    def test_the_environment_holds_for_one_cell(self, runner: Runner) -> None:
        assert runner.run("cat(Sys.getenv('A'))", env={"A": 'é "\\\n'}).stdout == 'é "\\\n'
        assert runner.run("Sys.getenv('A', NA)").text == "[1] NA"

    def test_a_data_frame_is_data_too(self, runner: Runner) -> None:
        code = "data.frame(a = c(1.5, NA), b = c('x<', '\"é'), c = factor(c('u', 'v')), d = c(TRUE, NA), e = day)"
        runner.run("day <- as.Date('2024-01-02')")
        main = runner.run(code).main
        assert main is not None
        assert main["data"] == {
            "a": [1.5, None],
            "b": ["x<", '"é'],
            "c": ["u", "v"],
            "d": [True, None],
            "e": ["2024-01-02", "2024-01-02"],
        }
        assert main["html"].startswith("<table><thead><tr><th></th><th>a</th>")
        assert "x&lt;" in main["html"]
        assert main["text"].splitlines()[0].split() == ["a", "b", "c", "d", "e"]

    def test_plots_are_results(self, runner: Runner) -> None:
        cell = runner.run("plot(1:3)\nhist(c(1, 2, 2))\n'last'")
        pictures = [result["png"] for result in cell.results if "png" in result]
        assert len(pictures) == 2
        assert all(base64.b64decode(picture, validate=True).startswith(b"\x89PNG") for picture in pictures)
        assert cell.text == '[1] "last"'
        assert len(runner.run("barplot(1:2)").results) == 1
        assert runner.run("1").text == "[1] 1"


class TestOutput:
    def test_text_and_results_keep_their_order_and_children_print_too(self, runner: Runner) -> None:
        cell = runner.run("print('a'); message('m'); warning('w'); system('echo child; echo wrong >&2'); 7")
        assert (cell.stdout, cell.stderr, cell.text) == ('[1] "a"\nchild\n', "m\nWarning: w\nwrong\n", "[1] 7")
        assert cell.order[-1] == "result"

    def test_all_of_a_long_output_arrives(self, runner: Runner) -> None:
        cell = runner.run("for (i in 1:20000) cat('0123456789\\n'); strrep('t', 2e6)")
        assert len(cell.stdout) == 220_000
        assert cell.main is not None
        assert (cell.main["cut"], len(cell.main["text"])) == (["text"], 1024 * 1024 - 1)

    def test_what_looks_like_frames_is_text(self, runner: Runner) -> None:
        cell = runner.run("cat('x\\001\\001{}'); cat('r\\001{}', file = stderr()); 1")
        assert (cell.stdout, cell.stderr, cell.text) == ("x\1\1{}", "r\1{}", "[1] 1")

    def test_children_do_not_have_the_socket(self, runner: Runner) -> None:
        assert "socket" not in runner.run("system('ls -l /proc/self/fd')").stdout


class TestErrors:
    def test_an_error_has_calls_and_lines(self, runner: Runner) -> None:
        error = runner.run("f <- function(a) {\n  stop('bad ', a)\n}\n\ng <- function() f(2)\ng()").error
        assert error is not None
        assert (error["name"], error["value"]) == ("Error", "bad 2")
        first, *calls = error["traceback"].split("\n")
        assert first == "Error in f(2) : bad 2"
        assert [call.split(" at cell_")[0] for call in calls] == ["  g()", "  f(2)"]
        assert [call.split(":")[-1] for call in calls] == ["6", "5"]
        missing = runner.run("\nnowhere").error
        assert missing is not None
        assert missing["value"] == "object 'nowhere' not found"

    def test_a_long_message_is_cut(self, runner: Runner) -> None:
        error = runner.run("stop(errorCondition(strrep('\u00e9', 2e6)))").error
        assert error is not None
        assert [len(error[part]) // 1000 for part in ("value", "traceback")] == [16, 131]
        assert "characters are left out here" in error["traceback"]

    def test_a_syntax_error_shows_its_line_and_nothing_ran(self, runner: Runner) -> None:
        cell = runner.run("cat('no')\nx <- )")
        assert cell.error is not None
        assert (cell.stdout, cell.error["name"]) == ("", "SyntaxError")
        assert cell.error["value"].endswith(".R:2:6: unexpected ')'")

    def test_what_was_printed_before_an_error_is_kept(self, runner: Runner) -> None:
        cell = runner.run(
            "kept <- 1\nprint('before')\n"
            "stop(structure(class = c('own', 'error', 'condition'), list(message = 'é', call = NULL)))"
        )
        assert cell.stdout == '[1] "before"\n'
        assert cell.error == {"name": "own", "value": "é", "traceback": "Error: é"}
        assert runner.run("kept").text == "[1] 1"


@pytest.mark.parametrize(
    "code",
    [
        "cat('go\\n'); while (TRUE) {}",
        "cat('go\\n'); Sys.sleep(60)",
        "f <- function() { cat('go\\n'); repeat tryCatch(stop('x'), error = function(e) 1) }; f()",
        "cat('go\\n'); repeat print(1)",
    ],
)
def test_an_interrupt_ends_the_cell_and_keeps_the_state(runner: Runner, code: str) -> None:
    runner.run("kept <- 1")
    for _ in range(2):
        error = runner.run(code, interrupt_at="go", again_s=1).error
        assert error is not None
        assert error["name"] == "Interrupted"
        assert runner.run("kept").text == "[1] 1"


def test_quit_ends_the_context_and_leaves_nothing(tmp_path: Path) -> None:
    with new_runner(tmp_path) as runner, pytest.raises(RunnerEnded) as ended:
        runner.run("cat('bye\\n'); quit(status = 3)")
    assert (ended.value.code, ended.value.cell.stdout) == (3, "bye\n")
    assert list(tmp_path.iterdir()) == []


def test_a_keeper_that_is_gone_ends_it(tmp_path: Path) -> None:
    with new_runner(tmp_path) as runner:
        runner.hang_up()
        assert runner.process.wait(60) in (0, -signal.SIGTERM)


def test_a_hundred_cells(runner: Runner) -> None:
    for number in range(100):
        assert runner.run(f"v{number} <- {number}; v{number} + 1").text == f"[1] {number + 1}"
