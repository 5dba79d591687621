"""What every AsyncSandboxClient does with code: interpreters that keep their state, and what comes of code in them.

`new` makes clients with the options of the place that is tested. bash is the language that every place has.
"""

import json
from collections.abc import Callable

import pytest

from warren.model.errors import ContextNotFound, InvalidRequest, NotFound, WarrenError
from warren.sdk.aio.client import AsyncSandboxClient
from warren.sdk.aio.platform import sleep
from warren.sdk.code_results import Execution, ExecutionError, OutputMessage, Result

New = Callable[..., AsyncSandboxClient]
_UNTIL_IT_SLEEPS_S = 0.3  # bash hears of a signal that comes while it starts a program when the program has ended


def out(execution: Execution) -> str:
    """The pieces that it comes in are anybody's guess."""
    return "".join(execution.logs.stdout)


class AsyncCodeContract:
    pytestmark = pytest.mark.anyio

    async def test_an_interpreter_keeps_its_variables_from_one_piece_of_code_to_the_next(self, new: New) -> None:
        async with new() as client:
            first = await client.run_code("colour=red", "bash")
            assert (first.ok, first.text, out(first), first.execution_count) == (True, None, "", 1)
            assert (first.language, first.context_id) == ("bash", "ctx_bash")
            second = await client.run_code("echo $colour; echo oh >&2", "sh")
            assert (out(second), "".join(second.logs.stderr)) == ("red\n", "oh\n")
            assert second.execution_count == 2

    async def test_files_that_code_made_are_saved(self, new: New) -> None:
        async with new() as client:
            ran = await client.run_code("echo 1 > made.txt", "bash", save_artifacts=["*.txt"], save_results=True)
            assert ran.saved is not None
            [artifact] = ran.saved.artifacts
            assert (artifact.name, await client.artifacts.read(artifact)) == ("made.txt", b"1\n")
            assert json.loads(ran.to_json())["saved"]["artifacts"][0]["name"] == "made.txt"
            await client.artifacts.delete(artifact)
            assert (await client.run_code("true", "bash")).saved is None

    async def test_callbacks_are_called_while_the_code_runs(self, new: New) -> None:
        heard: list[tuple[str, str]] = []
        states: list[list[str]] = []

        async def hear(message: OutputMessage) -> None:
            heard.append(("stderr" if message.error else "stdout", message.line))
            states.append([each.state for each in await client.list_code_contexts()])

        def hear_error(error: ExecutionError) -> None:
            heard.append(("error", error.name))

        async with new() as client:
            options = {"on_stdout": hear, "on_stderr": hear, "on_error": hear_error}
            execution = await client.run_code("echo begun; sleep 1; echo done >&2; false", "bash", **options)
            assert not execution.ok
            assert execution.error is not None
            assert states[0] == ["busy"]
            assert heard == [("stdout", "begun\n"), ("stderr", "done\n"), ("error", execution.error.name)]

    async def test_an_error_in_a_callback_is_raised_and_interrupts_the_code(self, new: New) -> None:
        async def fail(message: OutputMessage) -> None:
            await sleep(_UNTIL_IT_SLEEPS_S)
            raise ZeroDivisionError(message)

        async with new() as client:
            with pytest.raises(ZeroDivisionError, match="begun"):
                await client.run_code("x=kept; echo begun; sleep 60", "bash", on_stdout=fail)
            assert out(await client.run_code("echo $x", "bash", timeout=20)) == "kept\n"

    async def test_a_time_out_is_a_result_and_leaves_the_interpreter_as_it_was(self, new: New) -> None:
        async with new() as client:
            execution = await client.run_code("x=kept; echo begun; sleep 60; echo late", "bash", timeout=1)
            assert (execution.reason, out(execution), execution.ok) == ("timeout", "begun\n", False)
            assert execution.error is not None
            assert (execution.error.name, execution.context_lost) == ("TimeoutError", None)
            assert out(await client.run_code("echo $x", "bash")) == "kept\n"

    async def test_variables_of_the_environment_are_for_one_piece_of_code(self, new: New) -> None:
        async with new() as client:
            code = "echo [$COLOUR]"
            assert out(await client.run_code(code, "bash", env={"COLOUR": "red"})) == "[red]\n"
            assert out(await client.run_code(code, "bash")) == "[]\n"

    async def test_contexts_are_made_listed_restarted_and_removed(self, new: New) -> None:
        async with new() as client:
            await client.mkdir("deep")
            made = await client.create_code_context("bash", cwd="/workspace/deep", env={"A": "1"}, idle_timeout=600)
            assert (made.language, made.state, made.default) == ("bash", "idle", False)
            first = await client.run_code("echo $A; pwd; b=2", context=made)
            assert out(first) == "1\n/workspace/deep\n"
            assert out(await client.run_code("echo [$b]", "bash")) == "[]\n"
            listed = {each.id: each.default for each in await client.list_code_contexts()}
            assert listed == {made.id: False, "ctx_bash": True}
            assert (await client.restart_code_context(made)).id == made.id
            assert out(await client.run_code("echo [$b]", context=made.id)) == "[]\n"
            await client.remove_code_context(made)
            assert [each.id for each in await client.list_code_contexts()] == ["ctx_bash"]
            with pytest.raises(ContextNotFound):
                await client.run_code("echo", context=made)

    async def test_code_can_be_interrupted_by_another(self, new: New) -> None:
        async def interrupt(_: OutputMessage) -> None:
            await sleep(_UNTIL_IT_SLEEPS_S)
            assert (await other.interrupt_code_context("ctx_bash")).id == "ctx_bash"

        async with new() as client:
            other = new(session_id=client.session_id)
            await client.run_code("x=kept", "bash")
            execution = await client.run_code("echo begun; sleep 60", "bash", on_stdout=interrupt, timeout=30)
            assert execution.error is not None
            assert (execution.reason, execution.context_lost) == ("exited", None)
            assert out(await client.run_code("echo $x", "bash")) == "kept\n"
            await other.close()

    async def test_exactly_once_runs_code_and_gives_all_of_it(self, new: New) -> None:
        async with new(exactly_once=True) as client:
            execution = await client.run_code("echo once; echo once >> /workspace/log", "bash")
            assert (out(execution), execution.ok) == ("once\n", True)
            assert await client.read_text("log") == "once\n"

    async def test_what_cannot_be_is_refused_in_words(self, new: New) -> None:
        async with new() as client:
            with pytest.raises(InvalidRequest, match="no language 'cobol'"):
                await client.run_code("", "cobol")
            with pytest.raises(WarrenError):
                await client.run_code("", context="ctx_bash_00000000")
            with pytest.raises(NotFound):
                await client.get_execution("cell_000000000000")
            with pytest.raises(NotFound):
                await client.remove_code_context("ctx_bash_00000000")

    async def test_an_ended_session_of_a_thread_is_replaced_and_the_execution_says_so(self, new: New) -> None:
        async with new(thread_id="code") as client:
            await client.run_code("x=1", "bash")
            await client._backend.call("delete_session", client.session_id)
            execution = await client.run_code("echo [$x]", "bash")
            assert out(execution) == "[]\n"
            assert execution.notice is not None
            assert "fresh sandbox" in execution.notice
            await client.cleanup()


class AsyncPythonContract:
    pytestmark = pytest.mark.anyio

    async def test_the_value_of_the_last_expression_is_the_main_result(self, new: New) -> None:
        async with new() as client:
            await client.run_code("x = 20")
            execution = await client.run_code("print('printed')\nx + 22")
            assert (execution.text, out(execution), execution.error) == ("42", "printed\n", None)
            assert [each.is_main_result for each in execution.results] == [True]

    async def test_a_line_that_is_printed_comes_as_one_piece_and_its_beginning_if_it_is_flushed(self, new: New) -> None:
        async with new() as client:
            code = (
                "print('a'); import time; time.sleep(0.3); print('b', end='', flush=True); time.sleep(0.3); print('c')"
            )
            assert (await client.run_code(code)).logs.stdout == ["a\n", "b", "c\n"]

    async def test_an_error_of_the_code_is_in_the_execution(self, new: New) -> None:
        async with new() as client:
            execution = await client.run_code("1 / 0")
            assert execution.error is not None
            assert (execution.error.name, execution.error.value) == ("ZeroDivisionError", "division by zero")
            assert "1 / 0" in execution.error.traceback

    async def test_values_that_can_be_shown_come_in_their_formats_as_they_are_shown(self, new: New) -> None:
        code = r"""
class Chart:
    def _repr_png_(self): return b"\x89PNG\r\n\x1a\n"
    def _repr_html_(self): return "<b>chart</b>"
    def __repr__(self): return "a chart"
display(Chart())
"the last"
"""
        shown: list[Result] = []
        async with new() as client:
            execution = await client.run_code(code, on_result=shown.append)
            assert execution.results == shown
            chart, last = execution.results
            assert (chart.formats(), chart.text, chart.html) == (["text", "html", "png"], "a chart", "<b>chart</b>")
            assert chart.to_bytes("png") == b"\x89PNG\r\n\x1a\n"
            assert (last.text, last.is_main_result) == ("'the last'", True)

    async def test_an_interpreter_that_dies_is_told_and_the_next_code_has_a_fresh_one(self, new: New) -> None:
        async with new() as client:
            await client.run_code("x = 1")
            execution = await client.run_code("print('going', flush=True)\nimport os\nos._exit(3)")
            assert (execution.reason, execution.context_lost) == ("context_lost", "exited")
            assert (out(execution), str(execution.error)[:12]) == ("going\n", "ContextLost:")
            assert (await client.run_code("'x' in globals()")).text == "False"

    async def test_an_interpreter_that_does_not_heed_the_interrupt_is_ended(self, new: New) -> None:
        code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nimport time\ntime.sleep(60)"
        async with new() as client:
            execution = await client.run_code(code, timeout=0.5)
            assert (execution.reason, execution.context_lost) == ("timeout", "killed")
            assert (await client.run_code("1 + 1")).text == "2"
