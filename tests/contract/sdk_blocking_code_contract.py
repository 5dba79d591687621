"""What every SandboxClient does with code: interpreters that keep their state, and what comes of code in them.

`new` makes clients with the options of the place that is tested. bash is the language that every place has.
"""

# Made from tests/contract/sdk_async_code_contract.py by scripts/generate_sync.py: edit that one.

import json
from collections.abc import Callable

import pytest

from warren.model.errors import ContextNotFound, InvalidRequest, NotFound, WarrenError
from warren.sdk.blocking.client import SandboxClient
from warren.sdk.blocking.platform import sleep
from warren.sdk.code_results import Execution, ExecutionError, OutputMessage, Result

New = Callable[..., SandboxClient]
_UNTIL_IT_SLEEPS_S = 0.3  # bash hears of a signal that comes while it starts a program when the program has ended


def out(execution: Execution) -> str:
    """The pieces that it comes in are anybody's guess."""
    return "".join(execution.logs.stdout)


class CodeContract:
    def test_an_interpreter_keeps_its_variables_from_one_piece_of_code_to_the_next(self, new: New) -> None:
        with new() as client:
            first = client.run_code("colour=red", "bash")
            assert (first.ok, first.text, out(first), first.execution_count) == (True, None, "", 1)
            assert (first.language, first.context_id) == ("bash", "ctx_bash")
            second = client.run_code("echo $colour; echo oh >&2", "sh")
            assert (out(second), "".join(second.logs.stderr)) == ("red\n", "oh\n")
            assert second.execution_count == 2

    def test_files_that_code_made_are_saved(self, new: New) -> None:
        with new() as client:
            ran = client.run_code("echo 1 > made.txt", "bash", save_artifacts=["*.txt"], save_results=True)
            assert ran.saved is not None
            [artifact] = ran.saved.artifacts
            assert (artifact.name, client.artifacts.read(artifact)) == ("made.txt", b"1\n")
            assert json.loads(ran.to_json())["saved"]["artifacts"][0]["name"] == "made.txt"
            client.artifacts.delete(artifact)
            assert (client.run_code("true", "bash")).saved is None

    def test_callbacks_are_called_while_the_code_runs(self, new: New) -> None:
        heard: list[tuple[str, str]] = []
        states: list[list[str]] = []

        def hear(message: OutputMessage) -> None:
            heard.append(("stderr" if message.error else "stdout", message.line))
            states.append([each.state for each in client.list_code_contexts()])

        def hear_error(error: ExecutionError) -> None:
            heard.append(("error", error.name))

        with new() as client:
            options = {"on_stdout": hear, "on_stderr": hear, "on_error": hear_error}
            execution = client.run_code("echo begun; sleep 1; echo done >&2; false", "bash", **options)
            assert not execution.ok
            assert execution.error is not None
            assert states[0] == ["busy"]
            assert heard == [("stdout", "begun\n"), ("stderr", "done\n"), ("error", execution.error.name)]

    def test_an_error_in_a_callback_is_raised_and_interrupts_the_code(self, new: New) -> None:
        def fail(message: OutputMessage) -> None:
            sleep(_UNTIL_IT_SLEEPS_S)
            raise ZeroDivisionError(message)

        with new() as client:
            with pytest.raises(ZeroDivisionError, match="begun"):
                client.run_code("x=kept; echo begun; sleep 60", "bash", on_stdout=fail)
            assert out(client.run_code("echo $x", "bash", timeout=20)) == "kept\n"

    def test_a_time_out_is_a_result_and_leaves_the_interpreter_as_it_was(self, new: New) -> None:
        with new() as client:
            execution = client.run_code("x=kept; echo begun; sleep 60; echo late", "bash", timeout=1)
            assert (execution.reason, out(execution), execution.ok) == ("timeout", "begun\n", False)
            assert execution.error is not None
            assert (execution.error.name, execution.context_lost) == ("TimeoutError", None)
            assert out(client.run_code("echo $x", "bash")) == "kept\n"

    def test_variables_of_the_environment_are_for_one_piece_of_code(self, new: New) -> None:
        with new() as client:
            code = "echo [$COLOUR]"
            assert out(client.run_code(code, "bash", env={"COLOUR": "red"})) == "[red]\n"
            assert out(client.run_code(code, "bash")) == "[]\n"

    def test_contexts_are_made_listed_restarted_and_removed(self, new: New) -> None:
        with new() as client:
            client.mkdir("deep")
            made = client.create_code_context("bash", cwd="/workspace/deep", env={"A": "1"}, idle_timeout=600)
            assert (made.language, made.state, made.default) == ("bash", "idle", False)
            first = client.run_code("echo $A; pwd; b=2", context=made)
            assert out(first) == "1\n/workspace/deep\n"
            assert out(client.run_code("echo [$b]", "bash")) == "[]\n"
            listed = {each.id: each.default for each in client.list_code_contexts()}
            assert listed == {made.id: False, "ctx_bash": True}
            assert (client.restart_code_context(made)).id == made.id
            assert out(client.run_code("echo [$b]", context=made.id)) == "[]\n"
            client.remove_code_context(made)
            assert [each.id for each in client.list_code_contexts()] == ["ctx_bash"]
            with pytest.raises(ContextNotFound):
                client.run_code("echo", context=made)

    def test_code_can_be_interrupted_by_another(self, new: New) -> None:
        def interrupt(_: OutputMessage) -> None:
            sleep(_UNTIL_IT_SLEEPS_S)
            assert (other.interrupt_code_context("ctx_bash")).id == "ctx_bash"

        with new() as client:
            other = new(session_id=client.session_id)
            client.run_code("x=kept", "bash")
            execution = client.run_code("echo begun; sleep 60", "bash", on_stdout=interrupt, timeout=30)
            assert execution.error is not None
            assert (execution.reason, execution.context_lost) == ("exited", None)
            assert out(client.run_code("echo $x", "bash")) == "kept\n"
            other.close()

    def test_exactly_once_runs_code_and_gives_all_of_it(self, new: New) -> None:
        with new(exactly_once=True) as client:
            execution = client.run_code("echo once; echo once >> /workspace/log", "bash")
            assert (out(execution), execution.ok) == ("once\n", True)
            assert client.read_text("log") == "once\n"

    def test_what_cannot_be_is_refused_in_words(self, new: New) -> None:
        with new() as client:
            with pytest.raises(InvalidRequest, match="no language 'cobol'"):
                client.run_code("", "cobol")
            with pytest.raises(WarrenError):
                client.run_code("", context="ctx_bash_00000000")
            with pytest.raises(NotFound):
                client.get_execution("cell_000000000000")
            with pytest.raises(NotFound):
                client.remove_code_context("ctx_bash_00000000")

    def test_an_ended_session_of_a_thread_is_replaced_and_the_execution_says_so(self, new: New) -> None:
        with new(thread_id="code") as client:
            client.run_code("x=1", "bash")
            client._backend.call("delete_session", client.session_id)
            execution = client.run_code("echo [$x]", "bash")
            assert out(execution) == "[]\n"
            assert execution.notice is not None
            assert "fresh sandbox" in execution.notice
            client.cleanup()


class PythonContract:
    def test_the_value_of_the_last_expression_is_the_main_result(self, new: New) -> None:
        with new() as client:
            client.run_code("x = 20")
            execution = client.run_code("print('printed')\nx + 22")
            assert (execution.text, out(execution), execution.error) == ("42", "printed\n", None)
            assert [each.is_main_result for each in execution.results] == [True]

    def test_a_line_that_is_printed_comes_as_one_piece_and_its_beginning_if_it_is_flushed(self, new: New) -> None:
        with new() as client:
            code = (
                "print('a'); import time; time.sleep(0.3); print('b', end='', flush=True); time.sleep(0.3); print('c')"
            )
            assert (client.run_code(code)).logs.stdout == ["a\n", "b", "c\n"]

    def test_an_error_of_the_code_is_in_the_execution(self, new: New) -> None:
        with new() as client:
            execution = client.run_code("1 / 0")
            assert execution.error is not None
            assert (execution.error.name, execution.error.value) == ("ZeroDivisionError", "division by zero")
            assert "1 / 0" in execution.error.traceback

    def test_values_that_can_be_shown_come_in_their_formats_as_they_are_shown(self, new: New) -> None:
        code = r"""
class Chart:
    def _repr_png_(self): return b"\x89PNG\r\n\x1a\n"
    def _repr_html_(self): return "<b>chart</b>"
    def __repr__(self): return "a chart"
display(Chart())
"the last"
"""
        shown: list[Result] = []
        with new() as client:
            execution = client.run_code(code, on_result=shown.append)
            assert execution.results == shown
            chart, last = execution.results
            assert (chart.formats(), chart.text, chart.html) == (["text", "html", "png"], "a chart", "<b>chart</b>")
            assert chart.to_bytes("png") == b"\x89PNG\r\n\x1a\n"
            assert (last.text, last.is_main_result) == ("'the last'", True)

    def test_an_interpreter_that_dies_is_told_and_the_next_code_has_a_fresh_one(self, new: New) -> None:
        with new() as client:
            client.run_code("x = 1")
            execution = client.run_code("print('going', flush=True)\nimport os\nos._exit(3)")
            assert (execution.reason, execution.context_lost) == ("context_lost", "exited")
            assert (out(execution), str(execution.error)[:12]) == ("going\n", "ContextLost:")
            assert (client.run_code("'x' in globals()")).text == "False"

    def test_an_interpreter_that_does_not_heed_the_interrupt_is_ended(self, new: New) -> None:
        code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nimport time\ntime.sleep(60)"
        with new() as client:
            execution = client.run_code(code, timeout=0.5)
            assert (execution.reason, execution.context_lost) == ("timeout", "killed")
            assert (client.run_code("1 + 1")).text == "2"
