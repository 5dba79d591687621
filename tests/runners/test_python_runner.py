"""The runner of Python cells, without a sandbox: cells, results, errors, descriptors, processes, interrupts."""

import ast
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from runners.runner_process import RUNNERS, Runner, RunnerEnded

MAIN = RUNNERS / "python" / "main.py"
INTERRUPTED: Final = {"interrupt_at": "ready", "after_s": 0.2}


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    with Runner([sys.executable, MAIN], tmp_path) as runner:
        yield runner


def test_every_file_is_python_3_8() -> None:
    for file in MAIN.parent.glob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 8))


class TestCells:
    def test_it_says_hello_and_keeps_state(self, runner: Runner) -> None:
        assert runner.hello == {"version": "{}.{}.{}".format(*sys.version_info[:3])}
        assert runner.run("x = 5").events == []
        assert runner.run("x + 1").results == [{"type": "result", "is_main_result": True, "text": "6"}]
        assert runner.run("__name__, __import__('sys').argv, _").text == "('__main__', [''], 6)"
        assert runner.run("In[2], Out[2], __").text == "('x + 1', 6, 6)"
        cell = runner.run("")
        assert cell.end == {"execution_count": 5, "error": None}

    @pytest.mark.parametrize(
        ("code", "text"),
        [
            ("1;", None),
            ("1 # ;", "1"),
            ("'a;'", "'a;'"),
            ("'é', 2 ; # a", None),
            ("x = '\u2028\x0c'\r\nlen(x)", "2"),
            ("'\u2028'; 3;", None),
            ("None", None),
            ("x = 3", None),
            ("for i in range(2): i", None),
            ("def f():\n    return 7\nf()", "7"),
            ("if True:\n    1", None),
            ("\n    y = 1\n    if y:\n        y = 2\n    y", "2"),
            ("'é\\ud800'", "'é\\ud800'"),
            ("(1,\n 2)\n\n# end", "(1, 2)"),
        ],
    )
    def test_the_last_expression_is_shown(self, runner: Runner, code: str, text: str | None) -> None:
        cell = runner.run(code)
        assert (cell.text, cell.error) == (text, None)

    def test_text_arrives_while_the_cell_runs_and_before_the_result(self, runner: Runner) -> None:
        code = "import time\nfor i in range(3):\n    print(i)\n    time.sleep(0.3)\nprint('no line', end='')\ni"
        cell = runner.run(code)
        assert cell.stdout == "0\n1\n2\nno line"
        assert cell.parts[-2].at - cell.parts[0].at > 0.4
        assert cell.order[-2:] == ["stdout", "result"]
        assert runner.run("print('\\ud800 é')\nimport os; os.system('echo child')").stdout == "\\ud800 é\nchild\n"

    def test_await(self, runner: Runner) -> None:
        assert (
            runner.run("import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x\nawait f(1)").text
            == "1"
        )
        assert runner.run("async with asyncio.Lock() as lock: y = await f(2)\ny").text == "2"
        assert runner.run("asyncio.run(f(3))").text == "3"
        assert runner.run("task = asyncio.create_task(f(4))\ntask.done()").text == "False"
        assert runner.run("await task").text == "4"
        assert runner.run("asyncio.get_event_loop().run_until_complete(f(5))").text == "5"
        error = runner.run("async def g():\n    1/0\nawait g()").error
        assert error is not None
        frames = [line.strip() for line in error["traceback"].splitlines() if "File" in line]
        assert frames == ['File "<cell 7>", line 3, in <module>', 'File "<cell 7>", line 2, in g']

    def test_env_holds_for_one_cell_but_what_the_cell_sets_stays(self, runner: Runner) -> None:
        code = "import os\n[os.environ.get(name) for name in 'ABC']"
        runner.run("import os; os.environ['B'] = 'before'")
        assert runner.run(code + "; os.environ['C'] = 'own'", {"A": "1", "B": "2", "C": "3"}).error is None
        assert runner.run(code).text == "[None, 'before', 'own']"

    def test_a_future_statement_holds_for_later_cells(self, runner: Runner) -> None:
        runner.run("from __future__ import annotations")
        assert runner.run("def f(x: nowhere): pass\nf.__annotations__").text == "{'x': 'nowhere'}"

    def test_input_fails_at_once(self, runner: Runner) -> None:
        error = runner.run("input('name? ')").error
        assert error is not None
        assert error["name"] == "EOFError"
        assert "put the value into the code" in error["value"]

    def test_a_name_of_the_users_is_not_replaced(self, runner: Runner) -> None:
        runner.run("1")
        runner.run("_ = 'mine'")
        runner.run("2")
        assert runner.run("_").text == "'mine'"


class TestErrors:
    @pytest.mark.parametrize(
        ("code", "name", "value", "parts"),
        [
            ("x = 1\n1/0", "ZeroDivisionError", "division by zero", ['File "<cell 1>", line 2, in <module>\n    1/0']),
            ("x = = 1", "SyntaxError", "invalid syntax (<cell 1>, line 1)", ["    x = = 1\n        ^\n"]),
            ("return 1", "SyntaxError", "'return' outside function (<cell 1>, line 1)", ["    return 1\n"]),
            ("import sys; sys.exit(3)", "SystemExit", "3", ["sys.exit(3)"]),
            ("exit()", "SystemExit", "None", []),
            ("raise KeyboardInterrupt", "KeyboardInterrupt", "", []),
            ("def f(): f()\nf()", "RecursionError", "maximum recursion depth exceeded", ["more times]"]),
            ("try: 1/0\nexcept Exception: {}[3]", "KeyError", "3", ["ZeroDivisionError", "During handling of the"]),
            ("try: 1/0\nexcept Exception as e: raise OSError(1) from e", "OSError", "1", ["was the direct cause"]),
            ("raise ExceptionGroup('g', [ValueError(1)])", "ExceptionGroup", "g (1 sub-exception)", ["ValueError: 1"]),
            ("class A:\n    def __repr__(self): 1/0\nA()", "ZeroDivisionError", "division by zero", ["in __repr__"]),
            (
                "class A:\n    def __repr__(self): 1/0\ndisplay(A())",
                "ZeroDivisionError",
                "division by zero",
                ["line 3"],
            ),
            ("class E(Exception):\n    def __str__(self): 1/0\nraise E", "E", "<str() of the exception failed>", ["E"]),
            ("raise ValueError('x' * 10**7)", "ValueError", None, ["characters are left out"]),
            ("import json; json.loads('{')", "JSONDecodeError", None, ["json/decoder.py"]),
        ],
    )
    def test_an_error_says_where(
        self, runner: Runner, code: str, name: str, value: str | None, parts: list[str]
    ) -> None:
        error = runner.run(code).error
        assert error is not None
        assert error["name"] == name
        assert value is None or error["value"] == value
        assert "runners/python" not in error["traceback"]
        for part in parts:
            assert part in error["traceback"]
        assert runner.run("1").text == "1"

    @pytest.mark.parametrize(
        ("text", "count", "is_whole"),
        [("x", 600_000, True), ("x", 700_000, False), ("é", 100_000, True), ("é", 110_000, False)],
    )
    def test_a_long_value_is_whole_if_its_message_can_hold_it(
        self, runner: Runner, text: str, count: int, is_whole: bool
    ) -> None:
        error = runner.run(f"raise ValueError({text!r} * {count})").error
        assert error is not None
        assert (error["value"] == text * count) == is_whole
        assert "characters are left out" in error["traceback"]

    def test_lines_of_earlier_cells_are_found(self, runner: Runner) -> None:
        runner.run("def f(x):\n    return 1 / x")
        error = runner.run("f(0)").error
        assert error is not None
        assert '  File "<cell 1>", line 2, in f\n    return 1 / x\n' in error["traceback"]
        assert runner.run("import inspect; inspect.getsource(f)").text == repr("def f(x):\n    return 1 / x\n")
        assert "  f(w=" not in runner.run("import warnings; warnings.warn('careful')").stderr
        assert (
            runner.run("import traceback\ntry: f(0)\nexcept Exception: traceback.print_exc()").stderr.count("<cell")
            == 2
        )

    def test_a_format_that_fails_leaves_the_others(self, runner: Runner) -> None:
        cell = runner.run(
            "class A:\n    def _repr_html_(self): 1/0\n    def _repr_latex_(self): return '$x$'\n"
            "    __repr__ = lambda self: 'A'\nA()"
        )
        assert cell.results == [{"type": "result", "is_main_result": True, "latex": "$x$", "text": "A"}]
        assert "ZeroDivisionError" in cell.stderr


class TestDisplay:
    def test_formats(self, runner: Runner) -> None:
        code = """
class All:
    def __repr__(self): return 'plain'
    def _repr_html_(self): return '<b>'
    def _repr_markdown_(self): return '*b*'
    def _repr_svg_(self): return '<svg/>'
    def _repr_png_(self): return b'PNG', {'width': 1}
    def _repr_jpeg_(self): return b'JPG'
    def _repr_pdf_(self): return b'PDF'
    def _repr_latex_(self): return '$b$'
    def _repr_json_(self): return {'a': [1, float('nan')]}
    def _repr_javascript_(self): return 'b()'
    def _repr_mimebundle_(self, include=None, exclude=None): return {'a/b': {'c': 1}, 'text/html': '<i>'}
handle = display(All(), display_id='one')
"""
        (result,) = runner.run(code).results
        assert result == {
            **{"type": "result", "is_main_result": False, "display_id": "one", "text": "plain", "html": "<i>"},
            **{"markdown": "*b*", "svg": "<svg/>", "png": "UE5H", "jpeg": "SlBH", "pdf": "UERG", "latex": "$b$"},
            **{"json": {"a": [1, None]}, "javascript": "b()", "extra": {"a/b": {"c": 1}}},
        }

    def test_what_pip_installs_for_the_user_can_be_imported_at_once(self, runner: Runner, tmp_path: Path) -> None:
        """Also if its directory was not there when the context started, and before what the system has."""
        folder = tmp_path / "late" / "site-packages"
        runner.run(f"import site, sys\nsite.ENABLE_USER_SITE, site.USER_SITE = True, {str(folder)!r}")
        assert runner.run("import fresh").error["name"] == "ModuleNotFoundError"
        code = f"!mkdir -p {folder} && echo value = 5 > {folder}/fresh.py\nimport fresh\nfresh.value"
        assert runner.run(code).text == "5"
        code = (
            "next(entry for entry in sys.path if entry.endswith(('site-packages', 'dist-packages'))) == site.USER_SITE"
        )
        assert runner.run(code).text == "True"
        assert runner.run("import stale").error["name"] == "ModuleNotFoundError"

    def test_ipython_display_works_without_ipython(self, runner: Runner) -> None:
        code = "from IPython.display import HTML, Markdown, clear_output, display\ndisplay(HTML('<b>'), Markdown('*'))"
        assert [sorted(result) for result in runner.run(code).results] == [
            ["html", "is_main_result", "text", "type"],
            ["is_main_result", "markdown", "text", "type"],
        ]
        assert runner.run("clear_output(wait=True)").events == [{"type": "clear_output", "wait": True}]
        assert runner.run("HTML('<i>')").results[0]["html"] == "<i>"

    @pytest.mark.parametrize(
        "code", ["[1] * 10**8", "'x' * 10**9", "{i: 'x' * 1000 for i in range(10**5)}", "b'x' * 10**8", "(2,) * 10**7"]
    )
    def test_a_huge_text_is_cut(self, runner: Runner, code: str) -> None:
        (result,) = runner.run(code).results
        assert len(result["text"]) == 1 << 20
        assert result["cut"] == ["text"]

    def test_long_containers_are_whole(self, runner: Runner) -> None:
        for value in (list(range(3000)), tuple(range(1025)), {i: str(i) for i in range(2000)}):
            assert runner.run(f"{value!r}").text == repr(value)
        assert runner.run("set(range(2000)) == eval(repr(set(range(2000))))").text == "True"

    def test_bounds_of_results(self, runner: Runner) -> None:
        cell = runner.run("for i in range(300): display(i)")
        assert len(cell.results) == 201
        assert cell.results[-1]["cut"] == ["results"]
        code = """
class Big:
    def _repr_html_(self): return 'x' * (9 << 20)
    def _repr_markdown_(self): return 'm' * (9 << 20)
    def __repr__(self): return 'big'
Big()
"""
        (result,) = runner.run(code).results
        assert sorted(result["cut"]) == ["html", "markdown"]
        assert (result["text"], "html" in result) == ("big", False)

    def test_a_thread_may_display_between_cells(self, runner: Runner) -> None:
        runner.run("import threading, time\nthreading.Timer(0.2, lambda: (display('late'), print('done'))).start()")
        runner.await_text("done")
        assert [result["text"] for result in runner.run("1").results] == ["'late'", "1"]

    def test_no_event_comes_after_the_end(self, runner: Runner) -> None:
        code = "import threading, time\ndef work():\n    while True:\n        display(1)\n        time.sleep(0.0005)\n"
        runner.run(code + "threading.Thread(target=work, daemon=True).start()")
        for _ in range(40):
            assert runner.run("2").text == "2"
            assert runner.is_quiet()


class TestMagics:
    def test_commands_of_the_shell(self, runner: Runner) -> None:
        assert runner.run("x = 3\n!echo a $x {x + 1} $HOME | tr a-z A-Z").stdout.startswith("A 3 4 /")
        assert runner.run("y = !printf 'a\\nb\\n'\nlist(y), _exit_code").text == "(['a', 'b'], 0)"
        assert runner.run("for i in range(2):\n    !echo $i\n!false\n_exit_code").text == "1"
        assert runner.run("!echo 1 2 | awk '{print $2}'").stdout == "2\n"
        assert runner.run("text = '''\n!no\n%no\n'''\n!echo \"it's\"\ntext").text == repr("\n!no\n%no\n")

    def test_line_magics(self, runner: Runner, tmp_path: Path) -> None:
        (tmp_path / "sub").mkdir()
        assert runner.run("%cd sub").stdout == f"{tmp_path}/sub\n"
        assert runner.run("%pwd").text == repr(f"{tmp_path}/sub")
        assert runner.run("%env A=b\n!echo $A").stdout == "env: A=b\nb\n"
        cell = runner.run("%time 1 + 1")
        assert (cell.text, "Wall time" in cell.stdout) == ("2", True)
        assert "loops each)" in runner.run("%timeit -n 10 -r 2 1 + 1").stdout
        assert runner.run("%matplotlib inline\n%load_ext autoreload\n%config A.b = 'c'").error is None
        assert runner.run("%pip --version").stdout.startswith("pip ")
        assert "Return the length" in runner.run("str.__len__?\nlen?").stdout + "Return the length"
        (tmp_path / "sub/a.py").write_text("import sys\nz = sys.argv\n")
        assert runner.run("%run a.py b\nz").text == "['a.py', 'b']"

    def test_cell_magics(self, runner: Runner, tmp_path: Path) -> None:
        assert runner.run("%%bash\nx=3\necho $x {a,b}").stdout == "3 a b\n"
        error = runner.run("%%bash\nexit 3").error
        assert error is not None
        assert error["name"] == "CalledProcessError"
        assert runner.run("%%writefile a.txt\none\n!two\n").stdout == "Writing a.txt\n"
        assert (tmp_path / "a.txt").read_text() == "one\n!two\n"
        assert runner.run("%%capture out\nprint('kept')").stdout == ""
        assert runner.run("out.stdout").text == "'kept\\n'"
        assert runner.run("%%html\n<b>").results[0]["html"] == "<b>"
        error = runner.run("%%time\nx = 1\nx / 0").error
        assert error is not None
        assert 'File "<cell 7>", line 3, in <module>\n    x / 0\n' in error["traceback"]

    def test_what_does_not_exist_names_what_does(self, runner: Runner) -> None:
        for code, other in (("%nowhere 1", "%timeit"), ("%%nowhere\nx", "%%writefile")):
            error = runner.run(code).error
            assert error is not None
            assert error["value"].startswith("There is no %")
            assert other in error["value"]
        error = runner.run("x = 1\n!ls\nx = = 2").error
        assert error is not None
        assert "line 3" in error["value"]


class TestProcesses:
    def test_a_forked_child_does_not_come_back(self, runner: Runner) -> None:
        code = "import os\npid = os.fork()\nif pid == 0:\n    print('child'); display('child'); 1/0\n"
        cell = runner.run(code + "os.waitpid(pid, 0)[1] >> 8")
        assert (cell.text, cell.stdout) == ("1", "child\n'child'\n")
        assert 'File "<cell 1>", line 4' in cell.stderr
        assert runner.run("if os.fork() == 0: os.close(1000)\nelse: print(os.wait()[1] >> 8)").stdout == "1\n"
        assert runner.run("2").text == "2"

    def test_children_do_not_get_the_channel(self, runner: Runner) -> None:
        code = "import subprocess\nsubprocess.call(['ls', '-l', '/proc/self/fd'], close_fds=False)"
        listed = runner.run(code).stdout
        assert "pipe" in listed
        assert "socket" not in listed

    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_multiprocessing_finds_what_cells_define(self, runner: Runner, method: str) -> None:
        runner.run("import math\nK = 2\nclass Pair:\n    def __init__(self, x): self.x = x")
        runner.run("def scaled(x):\n    return Pair(K * math.floor(x))\nprint('not again')")
        code = f"import multiprocessing\nwith multiprocessing.get_context('{method}').Pool(2) as pool:\n"
        code += "    print([pair.x for pair in pool.map(scaled, [1.5, 2.5])])"
        cell = runner.run(code)
        assert (cell.stdout, cell.error) == ("[2, 4]\n", None)

    def test_classes_of_cells_can_be_pickled(self, runner: Runner) -> None:
        runner.run("import pickle, dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int")
        assert runner.run("pickle.loads(pickle.dumps(P(3)))").text == "P(x=3)"

    def test_a_crash_says_where(self, runner: Runner) -> None:
        with pytest.raises(RunnerEnded) as ended:
            runner.run("import ctypes\nctypes.string_at(0)")
        assert ended.value.code == -signal.SIGSEGV
        assert 'File "<cell 1>", line 2' in ended.value.cell.stderr

    def test_os_exit_ends_the_runner(self, runner: Runner) -> None:
        with pytest.raises(RunnerEnded) as ended:
            runner.run("print('bye', flush=True); import os; os._exit(5)")
        assert (ended.value.code, ended.value.cell.stdout) == (5, "bye\n")


class TestDescriptors:
    @pytest.mark.parametrize(
        "code",
        [
            "os.close(1); os.close(2)",
            "os.dup2(os.open('/dev/null', os.O_WRONLY), 1); os.dup2(1, 2)",
            "sys.stdout.close(); sys.stderr.close()",
            "sys.stdout = sys.stderr = None",
            "sys.__stdout__.close(); sys.stdout = None",
            "del sys.stdout",
            "os.dup2(os.open('/dev/null', os.O_RDWR), 3); os.dup2(3, 4)",
            "os.closerange(3, 500)",
            "sys.modules['__main__'] = sys",
        ],
    )
    def test_what_code_does_to_them_is_undone(self, runner: Runner, code: str) -> None:
        runner.run("import os, sys")
        runner.run(code)
        cell = runner.run("print('out'); print('err', file=sys.stderr); os.system('echo child'); 1")
        assert (cell.stdout, cell.stderr, cell.text) == ("out\nchild\n", "err\n", "1")

    def test_a_replaced_stream_stays(self, runner: Runner) -> None:
        runner.run("import io, sys; sys.stdout = io.StringIO()")
        assert runner.run("print('kept')").stdout == ""
        assert runner.run("sys.stdout.getvalue()").text == "'kept\\n'"

    def test_without_its_channel_it_dies_and_says_why(self, runner: Runner) -> None:
        with pytest.raises(RunnerEnded) as ended:
            runner.run("import os; os.closerange(3, 4096)")
        assert ended.value.code == 70
        assert "closed descriptors it did not open" in ended.value.cell.stderr

    def test_it_ends_with_the_keeper(self, runner: Runner) -> None:
        runner.hang_up()
        assert runner.process.wait(10) == 0


class TestInterrupts:
    @pytest.mark.parametrize(
        "code",
        [
            "time.sleep(30)",
            "while True: pass",
            "threading.Event().wait()",
            "!sleep 30",
            "await asyncio.sleep(30)",
            "asyncio.run(asyncio.sleep(30))",
            "class A:\n    def __repr__(self):\n        while True: pass\nA()",
            "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
            "for i in range(10**9): display(i); i",
        ],
    )
    def test_code_is_interrupted_and_state_is_kept(self, runner: Runner, code: str) -> None:
        runner.run("kept = 1")
        error = runner.run(f"import asyncio, threading, time\nprint('ready')\n{code}", **INTERRUPTED).error
        assert error is not None
        assert error["name"] in ("KeyboardInterrupt", "E")
        assert "runners/python" not in error["traceback"]
        assert runner.run("kept").text == "1"

    def test_the_traceback_of_a_waiting_coroutine_names_its_line(self, runner: Runner) -> None:
        code = "import asyncio\nasync def f():\n    print('ready')\n    await asyncio.sleep(30)\nawait f()"
        error = runner.run(code, **INTERRUPTED).error
        assert error is not None
        assert 'File "<cell 1>", line 4, in f' in error["traceback"]

    def test_code_may_catch_it(self, runner: Runner) -> None:
        code = "import time\nprint('ready')\ntry: time.sleep(30)\nexcept KeyboardInterrupt: print('ready again')"
        cell = runner.run(code + "\ntime.sleep(30)", **INTERRUPTED)
        assert cell.stdout == "ready\nready again\n"
        assert cell.error is not None

    def test_one_that_comes_when_idle_is_dropped(self, runner: Runner) -> None:
        for _ in range(50):
            runner.interrupt()
            runner.settle()
            assert runner.run("1").text == "1"

    def test_one_that_comes_after_the_request_is_never_lost(self, runner: Runner) -> None:
        runner.run("import time")
        for _ in range(100):
            # In short sleeps: Python notices a signal that comes just before a system call only after that call.
            runner.send("while True: time.sleep(0.05)")
            runner.interrupt()
            error = runner.finish(patience_s=15).error
            assert error is not None
            assert error["name"] == "KeyboardInterrupt"

    def test_many_of_them_break_nothing(self, runner: Runner) -> None:
        stop = threading.Event()

        def fire() -> None:
            while not stop.wait(0.001):
                runner.interrupt()

        thread = threading.Thread(target=fire)
        thread.start()
        try:
            for number in range(150):
                assert runner.run("display(1)\nsum(range(20_000))").end["execution_count"] == number + 1
        finally:
            stop.set()
            thread.join()
        runner.settle()
        assert runner.run("2").text == "2"

    def test_handlers_of_the_users(self, runner: Runner) -> None:
        runner.run("import signal, time\nsignal.signal(signal.SIGINT, lambda *_: print('mine'))")
        error = runner.run("print('ready'); time.sleep(30)", **INTERRUPTED).error
        assert error is not None
        assert error["name"] == "KeyboardInterrupt"
        assert runner.process.poll() is None

    def test_a_handler_that_raises_all_the_time(self, runner: Runner) -> None:
        runner.run("import signal\ndef late(*_): raise ValueError('late')\nsignal.signal(signal.SIGALRM, late)")
        runner.run("signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)")
        for _ in range(30):
            runner.run("sum(range(100_000))")
            time.sleep(0.01)
        for _ in range(50):
            if runner.run("signal.setitimer(signal.ITIMER_REAL, 0)").error is None:
                break
        assert runner.run("4").text == "4"

    def test_a_handler_that_raises_when_nothing_runs(self, runner: Runner) -> None:
        runner.run("import signal")
        runner.run("def late(*_): raise ValueError('late')\nsignal.signal(signal.SIGALRM, late); signal.alarm(1)")
        runner.await_text("ValueError: late\n")
        assert runner.run("3").text == "3"
