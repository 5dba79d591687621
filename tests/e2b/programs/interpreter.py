"""The code interpreter: results, charts, errors, output as it comes, contexts, languages, time-outs."""

import base64

from checks import done, refused, wait_until
from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import Sandbox


def values(sandbox: Sandbox) -> None:
    execution = sandbox.run_code("x = 40\nx + 2")
    assert execution.text == "42"
    assert execution.results[0].is_main_result
    assert execution.error is None
    assert execution.execution_count == 1
    assert sandbox.run_code("x").text == "40"
    assert sandbox.run_code("'text'").text == "text"
    nothing = sandbox.run_code("y = 1")
    assert nothing.text is None
    assert nothing.results == []
    printed = sandbox.run_code("import sys\nprint('out')\nprint('err', file=sys.stderr)\n7")
    assert printed.logs.stdout == ["out\n"]
    assert printed.logs.stderr == ["err\n"]
    assert printed.text == "7"
    assert printed.to_json()
    assert sandbox.run_code("import os; os.getcwd()").text == "/home/user"
    assert sandbox.run_code("import os; os.environ['FROM_CREATE']").text == "yes"
    assert sandbox.run_code("os.environ['ONCE']", envs={"ONCE": "now"}).text == "now"
    assert sandbox.run_code("print('ž🐎')").logs.stdout == ["ž🐎\n"]
    sandbox.files.write("data.csv", "a,b\n1,2\n")
    assert sandbox.run_code("open('data.csv').read()").text == "a,b\\n1,2\\n"
    sandbox.run_code("open('made.txt', 'w').write('by code')")
    assert sandbox.files.read("made.txt") == "by code"


def errors(sandbox: Sandbox) -> None:
    execution = sandbox.run_code("print('before')\n1/0\nprint('after')")
    assert execution.error.name == "ZeroDivisionError"
    assert execution.error.value == "division by zero"
    assert "1/0" in execution.error.traceback
    assert execution.logs.stdout == ["before\n"]
    assert sandbox.run_code("1 +* 2").error.name == "SyntaxError"
    assert sandbox.run_code("undefined_name").error.name == "NameError"
    assert sandbox.run_code("1 + 1").text == "2"


def callbacks(sandbox: Sandbox) -> None:
    out, err, results, failures = [], [], [], []
    sandbox.run_code(
        "import sys, time\nprint('one')\ntime.sleep(0.5)\nprint('two', file=sys.stderr)\nraise ValueError('three')",
        on_stdout=lambda message: out.append(message.line),
        on_stderr=lambda message: err.append((message.line, message.error)),
        on_error=failures.append,
    )
    assert "".join(out) == "one\n"
    assert err == [("two\n", True)]
    assert [(failure.name, failure.value) for failure in failures] == [("ValueError", "three")]
    sandbox.run_code("5", on_result=results.append)
    assert [result.text for result in results] == ["5"]
    page = sandbox.run_code(
        "class Page:\n    def _repr_html_(self): return '<b>hi</b>'\n    def __repr__(self): return 'page'\nPage()"
    )
    assert (page.results[0].html, page.text) == ("<b>hi</b>", "page")
    assert list(page.results[0].formats()) == ["text", "html"]


def contexts(sandbox: Sandbox) -> None:
    begun = [(context.language, context.cwd) for context in sandbox.list_code_contexts()]
    assert begun == [("python", "/home/user"), ("javascript", "/home/user")]
    first = sandbox.create_code_context()
    assert sandbox.list_code_contexts()[-1].id == first.id
    second = sandbox.create_code_context(cwd="/tmp", language="python")
    assert (first.language, first.cwd) == ("python", "/home/user")
    assert second.cwd == "/tmp"
    sandbox.run_code("z = 'first'", context=first)
    assert sandbox.run_code("import os; os.getcwd()", context=second).text == "/tmp"
    assert sandbox.run_code("z", context=second).error.name == "NameError"
    assert sandbox.run_code("z", context=first).text == "first"
    assert [context.id for context in sandbox.list_code_contexts()][2:] == [first.id, second.id]
    rooted = sandbox.create_code_context(cwd="/root")
    assert rooted.cwd == "/root"
    assert sandbox.run_code("import os; os.getuid(), os.getcwd()", context=rooted).text == "(0, '/root')"
    sandbox.remove_code_context(rooted)
    sandbox.restart_code_context(first)
    assert sandbox.run_code("z", context=first).error.name == "NameError"
    sandbox.remove_code_context(second.id)
    assert second.id not in {context.id for context in sandbox.list_code_contexts()}
    for call in (
        lambda: sandbox.run_code("1", context=second),
        lambda: sandbox.remove_code_context(second.id),
        lambda: sandbox.restart_code_context("none"),
    ):
        with refused(NotFoundException, SandboxException):
            call()


def languages(sandbox: Sandbox) -> None:
    assert sandbox.run_code("echo $((6*7))", language="bash").logs.stdout == ["42\n"]
    assert sandbox.run_code("const a = 6; a * 7", language="javascript").text == "42"
    assert sandbox.run_code("a + 1", language="javascript").text == "7"
    assert sandbox.run_code("function f(n: number): number { return n - 2 }\nf(1)", language="ts").text == "-1"
    with refused(SandboxException):
        sandbox.run_code("1", language="cobol")


def timeouts(sandbox: Sandbox) -> None:
    sandbox.run_code("kept = 1")
    with refused(TimeoutException):
        sandbox.run_code("import time\ntime.sleep(60)", timeout=2)
    # What timed out is interrupted, and the context goes on.
    wait_until(lambda: sandbox.run_code("kept", timeout=30).text == "1", 60)


def charts(sandbox: Sandbox) -> None:
    execution = sandbox.run_code(
        "import matplotlib.pyplot as plt\n"
        "plt.bar(['a', 'b'], [3, 4])\nplt.title('Sums')\nplt.xlabel('who')\nplt.ylabel('how many')\nplt.show()",
        timeout=120,
    )
    assert execution.error is None, execution.error.traceback
    (result,) = execution.results
    assert base64.b64decode(result.png).startswith(b"\x89PNG")
    chart = result.chart
    assert chart.type.value == "bar"
    assert chart.title == "Sums"
    assert [(bar.label, float(bar.value)) for bar in chart.elements] == [("a", 3.0), ("b", 4.0)]
    line = sandbox.run_code("plt.plot([1, 2, 3], [1, 4, 9], label='squares')\nplt.show()").results[0].chart
    assert line.type.value == "line"
    assert line.elements[0].points == [(1, 1), (2, 4), (3, 9)] or [list(p) for p in line.elements[0].points] == [
        [1, 1],
        [2, 4],
        [3, 9],
    ]


def images(sandbox: Sandbox) -> None:
    new = "from PIL import Image\nimage = Image.new('RGBA', (16, 16), 'red')\n"
    for how in ("image.show()", "image", "image.save('test.png')"):
        execution = sandbox.run_code(new + how, timeout=120)
        assert execution.error is None, execution.error.traceback
        (result,) = execution.results
        assert base64.b64decode(result.png).startswith(b"\x89PNG")
    assert sandbox.files.exists("test.png")


def the_end(sandbox: Sandbox) -> None:
    found = Sandbox.connect(sandbox.sandbox_id)
    assert found.run_code("kept").text == "1"
    sandbox.kill()
    with refused(TimeoutException, NotFoundException):
        sandbox.run_code("1")


sandbox = Sandbox.create(timeout=300, envs={"FROM_CREATE": "yes"})
try:
    values(sandbox)
    errors(sandbox)
    callbacks(sandbox)
    contexts(sandbox)
    languages(sandbox)
    timeouts(sandbox)
    charts(sandbox)
    images(sandbox)
    the_end(sandbox)
finally:
    sandbox.kill()
done()
