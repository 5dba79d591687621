"""Runs the same cells in Warren's runner of Python and in ipykernel, and prints where they differ.

    make code-venv && build/code-venv/bin/python bench/conformance.py [--all]

It compares standard output, the text of the last expression, the formats of everything shown, and name and value of the
error. A cell that is meant to differ says why. Ends with 1 if another cell differs.
"""

import argparse
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from runners.runner_process import RUNNERS, Runner

WRAPPED = "Their repr breaks long lines, ours is Python's"
# code, and why the two differ if they should
CELLS: list[tuple[str, str]] = [
    ("1 + 1", ""),
    ("x = 5", ""),
    ("x", ""),
    ("x;", ""),
    ("x # ; no", ""),
    ("'text'", ""),
    ("None", ""),
    ("print('a'); 7", ""),
    ("print('a', end='')", ""),
    ("_", ""),
    ("for i in range(3): print(i)", ""),
    ("def f(a):\n    '''doc'''\n    return a * 2\nf(21)", ""),
    ("class A:\n    pass\nA.__module__, A.__qualname__", ""),
    ("[i * i for i in range(5)]", ""),
    ("list(range(100))", WRAPPED),
    ("{'b': 1, 'a': {2, 1}}", ""),
    ("{i: 'x' * 10 for i in range(20)}", WRAPPED),
    ("list(range(2000))[-1]", ""),
    ("1/0", ""),
    ("f(", "They say 'incomplete input', we what Python says"),
    ("x = = 1", ""),
    ("return 1", ""),
    ("  x\n  x + 1", ""),
    ("undefined", ""),
    ("raise ValueError('a', 1)", ""),
    ("import nowhere_at_all", ""),
    ("assert x == 6, 'no'", ""),
    ("try:\n    1/0\nexcept Exception as e:\n    raise KeyError('k') from e", ""),
    ("raise ExceptionGroup('g', [ValueError(1)])", "They write its traceback to standard error and report no error"),
    ("def r(): r()\nr()", ""),
    ("import sys; sys.exit(3)", ""),
    ("raise KeyboardInterrupt", ""),
    ("class B:\n    def __repr__(self): 1/0\nB()", ""),
    ("class H:\n    def _repr_html_(self): return '<b>'\n    def __repr__(self): return 'H'\nH()", ""),
    ("display(H())", ""),
    ("display(1, 'a')", ""),
    ("class P:\n    def _repr_png_(self): return b'\\x89PNG'\n    def __repr__(self): return 'P'\nP()", ""),
    ("class M:\n    def _repr_mimebundle_(self, **k): return {'a/b': 1, 'text/plain': 'm'}\nM()", ""),
    ("from IPython.display import HTML, Markdown, JSON, Latex, SVG\nHTML('<i>')", ""),
    ("display(Markdown('*a*'), JSON({'a': 1}), Latex('$x$'), SVG('<svg></svg>'))", ""),
    ("import asyncio\nawait asyncio.sleep(0, 3)", ""),
    ("async def g(): return 4\nawait g()", ""),
    ("task = asyncio.create_task(g())", ""),
    ("await task", ""),
    ("asyncio.run(g())", "Their loop runs all the time, so asyncio.run fails; ours does not"),
    ("async for i in (j async for j in __import__('contextlib').aclosing(g())): pass", ""),
    ("!echo hi", ""),
    ("y = !echo a; echo b\nlist(y)", ""),
    ("!echo $x {x + 1}", ""),
    ("%cd /tmp", ""),
    ("%pwd", ""),
    ("%env WARREN_A=1", ""),
    ("import os; os.environ['WARREN_A']", ""),
    ("%%bash\necho from bash", ""),
    ("%%sh\necho from sh", ""),
    ("%%capture c\nprint('kept')", ""),
    ("c.stdout", ""),
    ("%nowhere", "They print that it was not found and go on; we name those that exist"),
    ("%matplotlib inline", ""),
    ("os.system('echo from a child')", ""),
    ("input('?')", "Their error is StdinNotImplementedError, ours EOFError"),
    ("__name__, type(get_ipython()).__name__ != ''", ""),
    ("import pickle; pickle.loads(pickle.dumps(A)) is A", ""),
    ("import inspect; inspect.getsource(f)", ""),
    ("from dataclasses import dataclass\n@dataclass\nclass D:\n    a: int = 1\nD()", ""),
    ("import threading\nt = threading.Thread(target=print, args=('in a thread',)); t.start(); t.join()", ""),
    ("import warnings, logging; logging.getLogger('a').setLevel(10); len(In) > 10", ""),
    ("import numpy as np; np.arange(6).reshape(2, 3)", ""),
    ("import pandas as pd; pd.DataFrame({'a': [1, 2]})", ""),
    ("pd.Series([1, 2])", ""),
    ("pd.DataFrame(np.zeros((100, 30)))", ""),
    ("import matplotlib.pyplot as plt\nplt.plot([1, 2]);", ""),
    ("plt.plot([1]); plt.show(); print('after')", ""),
    ("fig, ax = plt.subplots(); ax.bar(['a'], [1]); plt.close(fig); fig", ""),
    ("plt.figure()", "They show the figure twice: as the value and because it is open"),
    ("import altair; altair.Chart(pd.DataFrame({'a': [1]})).mark_bar().encode(x='a')", ""),
    ("'\\ud800'", ""),
    ("print('é ✓ \\x1b[31mred\\x1b[0m')", ""),
    ("len('é' * 3)  # é", ""),
    ("if True:\n    y = 1\n\n\n\ny", ""),
]


@dataclass
class Outcome:
    stdout: str = ""
    text: str | None = None
    shown: list[tuple[str, ...]] = field(default_factory=list)
    error: tuple[str, str] | None = None

    def differences(self, other: "Outcome") -> str:
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in ("stdout", "text", "shown", "error")]
        return "; ".join(
            f"{name} {str(mine)[:60]!r} / {str(theirs)[:60]!r}" for name, mine, theirs in pairs if mine != theirs
        )


MIMES = {
    **{"text": "text/plain", "html": "text/html", "markdown": "text/markdown", "svg": "image/svg+xml"},
    **{"png": "image/png", "jpeg": "image/jpeg", "pdf": "application/pdf", "latex": "text/latex"},
    **{"json": "application/json", "javascript": "application/javascript"},
}


def without_file(value: str) -> str:
    return re.sub(r"\((<cell \d+>|\d+\.py), line", "(line", value)


def run_ours(runner: Runner, code: str) -> Outcome:
    cell = runner.run(code, patience_s=120)
    shown = [
        tuple(sorted([mime for name, mime in MIMES.items() if name in result] + list(result.get("extra", ()))))
        for result in cell.results
    ]
    error = (cell.error["name"], without_file(cell.error["value"])) if cell.error else None
    return Outcome(cell.stdout, cell.text, shown, error)


def run_theirs(client: Any, code: str) -> Outcome:
    outcome = Outcome()
    request = client.execute(code, allow_stdin=False)
    while True:
        message = client.get_iopub_msg(timeout=120)
        if message["parent_header"].get("msg_id") != request:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle":
            return outcome
        if kind == "stream" and content["name"] == "stdout":
            outcome.stdout += content["text"].replace("\r\n", "\n")  # ipykernel's commands have a terminal
        elif kind in ("execute_result", "display_data"):
            outcome.shown.append(tuple(sorted(content["data"])))
            if kind == "execute_result":
                outcome.text = content["data"].get("text/plain")
        elif kind == "error":
            outcome.error = (content["ename"], without_file(content["evalue"]))


def main() -> int:
    parser = argparse.ArgumentParser(description="Compares the runner of Python with ipykernel.")
    parser.add_argument("--all", action="store_true", help="print the cells that are equal as well")
    options = parser.parse_args()
    begun = time.perf_counter()
    manager = KernelManager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    theirs_s = time.perf_counter() - begun
    equal, wanted, wrong = 0, 0, 0
    try:
        with Runner([sys.executable, RUNNERS / "python" / "main.py"]) as runner:
            print(f"ready: ours {runner.start_s * 1e3:.0f} ms, ipykernel {theirs_s * 1e3:.0f} ms\n")
            for code, why in CELLS:
                found = run_ours(runner, code).differences(run_theirs(client, code))
                equal, wanted = equal + (not found), wanted + bool(found and why)
                is_wrong = bool(found) != bool(why)
                wrong += is_wrong
                verdict = "WRONG " * is_wrong + (why or "equal")
                if found or is_wrong or options.all:
                    print(f"{code.splitlines()[0][:50]!r:54} {verdict}{': ' * bool(found)}{found}")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    print(f"\n{len(CELLS)} cells: {equal} equal, {wanted} differ as they should, {wrong} are not what this table says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
