"""Runs the commands of IPython that notebooks use: what `get_ipython()` gives, and the commands by their names."""

import os
import re
import sys

from . import context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any, Callable

_VARIABLE = re.compile(r"\$(\$|\w+)|\{([^{}]+)\}")


class Events:
    """Calls functions at the end of each cell."""

    def register(self, event: str, function: "Callable[[], object]") -> None:
        if event != "post_execute":
            raise ValueError("Functions can be called at the event post_execute only, not at %s." % event)
        if function not in context.after_cell:
            context.after_cell.append(function)

    def unregister(self, event: str, function: "Callable[[], object]") -> None:
        if event != "post_execute" or function not in context.after_cell:
            raise ValueError("This function was not registered for %s." % event)
        context.after_cell.remove(function)


class Shell:
    """What `get_ipython()` gives."""

    events = Events()

    kernel = None  # that it is there tells pandas that this is no terminal
    config: "dict[str, Any]" = {}

    @property
    def user_ns(self) -> "dict[str, Any]":
        return context.namespace

    @property
    def execution_count(self) -> int:
        return context.count

    def system(self, command: str) -> None:
        """Runs a command of the shell; its output goes where the cell's goes, while it runs."""
        import subprocess

        context.flush()
        context.namespace["_exit_code"] = subprocess.call(expand(command), shell=True)

    def getoutput(self, command: str) -> "Lines":
        """Runs a command of the shell and returns the lines of its output."""
        import subprocess

        context.flush()
        done = subprocess.run(expand(command), shell=True, stdout=subprocess.PIPE)
        context.namespace["_exit_code"] = done.returncode
        return Lines(done.stdout.decode("utf-8", "replace").splitlines())

    def run_line_magic(self, name: str, line: str) -> "Any":
        if name in _IGNORED:
            return None
        if name not in LINE_MAGICS:
            raise NameError("There is no %%%s here; there are %s." % (name, _list("%", LINE_MAGICS)))
        return LINE_MAGICS[name](line)

    magic = property(lambda self: lambda text: self.run_line_magic(*text.partition(" ")[::2]))

    def run_cell_magic(self, name: str, line: str, body: str) -> "Any":
        return self._run_cell_magic(name, line, body, 0)

    def _run_cell_magic(self, name: str, line: str, body: str, first: int) -> "Any":
        if name not in CELL_MAGICS:
            raise NameError("There is no %%%%%s here; there are %s." % (name, _list("%%", CELL_MAGICS)))
        return CELL_MAGICS[name](line, body, first)


class Lines(list):  # type: ignore[type-arg]
    """Lines of output, as IPython has them."""

    @property
    def l(self) -> "list[str]":  # noqa: E743
        return list(self)

    @property
    def n(self) -> str:
        return "\n".join(self)

    @property
    def s(self) -> str:
        return " ".join(self)

    nlstr, spstr, list = n, s, l


shell = Shell()


def get_ipython() -> "Shell":
    return shell


def _list(sign: str, magics: "dict[str, Any]") -> str:
    return ", ".join(sign + name for name in sorted(magics))


def expand(command: str) -> str:
    """Replaces `$name` and `{expression}` by their values; returns the command unchanged if an expression fails."""

    def value(found: "re.Match[str]") -> str:
        name, expression = found.groups()
        if expression is not None:
            return str(eval(expression, dict(context.namespace)))
        if name == "$":
            return "$"
        return str(context.namespace[name]) if name in context.namespace else found.group()

    try:
        return _VARIABLE.sub(value, command)
    except Exception:
        return command


def _program(arguments: "list[str]") -> int:
    import subprocess

    context.flush()
    return subprocess.call(arguments)


def pip(line: str) -> None:
    """Runs pip of this Python."""
    import importlib
    import shlex

    status = _program([sys.executable, "-m", "pip", *shlex.split(expand(line))])
    importlib.invalidate_caches()
    if status:
        raise RuntimeError("pip has failed, exit code %d: see its output." % status)


def cd(line: str) -> None:
    """Changes the directory."""
    import shlex

    parts = shlex.split(expand(line)) or ["~"]
    path = context.namespace.get("_oldcwd", ".") if parts[-1] == "-" else os.path.expanduser(parts[-1])
    before = os.getcwd()
    os.chdir(path)
    context.namespace["_oldcwd"] = before
    if "-q" not in parts:
        sys.stdout.write(os.getcwd() + "\n")


def pwd(line: str) -> str:
    """The current directory."""
    return os.getcwd()


def env(line: str) -> "Any":
    """Shows or sets variables of the environment: `%env`, `%env NAME`, `%env NAME=value`."""
    text = expand(line).strip()
    if not text:
        return dict(os.environ)
    name, sign, value = text.partition("=")
    if not sign:
        name, _, value = text.partition(" ")
        if not value:
            return os.environ[name]
    os.environ[name.strip()] = value.strip()
    sys.stdout.write("env: %s=%s\n" % (name.strip(), value.strip()))
    return None


def time(line: str) -> "Any":
    """Times one statement."""
    return _timed(line, "<cell %d>" % context.count)


def _timed(source: str, filename: str) -> "Any":
    from time import perf_counter, process_time

    tree = context.parse(source, filename)
    body, last = tree.body, None
    if body and type(body[-1]).__name__ == "Expr" and not source.rstrip().endswith(";"):
        last = body.pop().value
    steps = _compiled(tree, last, filename)
    wall, cpu = perf_counter(), process_time()
    try:
        return context.run_steps(steps, source)
    finally:
        cpu, wall = process_time() - cpu, perf_counter() - wall
        sys.stdout.write("CPU times: total: %s\nWall time: %s\n" % (_duration(cpu), _duration(wall)))


def _compiled(tree: "Any", last: "Any", filename: str) -> "list[CodeType]":
    import _ast

    steps = [compile(tree, filename, "exec", context.TOP_LEVEL_AWAIT, True)] if tree.body else []
    if last is not None:
        steps.append(compile(_ast.Expression(last), filename, "eval", context.TOP_LEVEL_AWAIT, True))
    return steps


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if seconds >= size or unit == "ns":
            return "%.3g %s" % (seconds / size, unit)
    return ""


def timeit(line: str, setup: str = "pass") -> None:
    """Times a statement many times: `%timeit [-n loops] [-r repeats] statement`."""
    from timeit import Timer

    found = re.match(r"((?:-[nr]\s*\d+\s+|-[qo]\s+)*)(.*)$", line, re.DOTALL)
    options, statement = found.groups() if found else ("", line)
    given = dict(re.findall(r"-([nr])\s*(\d+)", options))
    timer = Timer(statement, setup, globals=context.namespace)
    number = int(given.get("n", 0)) or timer.autorange()[0]
    repeats = int(given.get("r", 7))
    times = [taken / number for taken in timer.repeat(repeats, number)]
    mean = sum(times) / len(times)
    spread = (sum((taken - mean) ** 2 for taken in times) / len(times)) ** 0.5
    text = "%s ± %s per loop (mean ± std. dev. of %d runs, %s loops each)\n"
    sys.stdout.write(text % (_duration(mean), _duration(spread), repeats, f"{number:,}"))


def who(line: str) -> None:
    """The names that cells have defined."""
    sys.stdout.write("\t".join(_names()) + "\n")


def _names() -> "list[str]":
    return sorted(name for name in context.namespace if not name.startswith("_") and name not in ("In", "Out"))


def reset(line: str) -> None:
    """Removes the names that cells have defined."""
    for name in _names():
        del context.namespace[name]


def run(line: str) -> None:
    """Runs a file in this namespace: `%run file.py arguments`."""
    import shlex

    parts = [part for part in shlex.split(expand(line)) if part != "-i"]
    with open(parts[0], "rb") as file:
        code = compile(file.read(), parts[0], "exec", 0, True)
    before, sys.argv = sys.argv, parts
    try:
        exec(code, context.namespace)
    finally:
        sys.argv = before


def pinfo(line: str) -> None:
    """Shows what an object is: `name?`."""
    import inspect

    value = eval(line, context.namespace)
    try:
        head = line + str(inspect.signature(value))
    except (TypeError, ValueError):
        head = context.text_of(value)[:2000]
    kind = "%s.%s" % (type(value).__module__, type(value).__qualname__)
    sys.stdout.write("%s\nType: %s\n%s\n" % (head, kind, inspect.getdoc(value) or "<no docstring>"))


def lsmagic(line: str) -> None:
    """Lists these commands."""
    sys.stdout.write("%s\n%s\n" % (_list("%", LINE_MAGICS), _list("%%", CELL_MAGICS)))


def _system(line: str) -> "Lines":
    return shell.getoutput(line)


LINE_MAGICS: "dict[str, Any]" = {
    "cd": cd,
    "env": env,
    "lsmagic": lsmagic,
    "pinfo": pinfo,
    "pip": pip,
    "pwd": pwd,
    "reset": reset,
    "run": run,
    "set_env": env,
    "sx": _system,
    "system": _system,
    "time": time,
    "timeit": timeit,
    "who": who,
}
_IGNORED = frozenset(
    ("autoreload", "autosave", "colors", "config", "load_ext", "matplotlib", "pylab", "reload_ext", "xmode")
)


def _script(*program: str) -> "Any":
    def run_script(line: str, body: str, first: int) -> None:
        import subprocess

        context.flush()
        done = subprocess.run([*program, *line.split()], input=body.encode())
        context.namespace["_exit_code"] = done.returncode
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, " ".join(program))

    return run_script


def writefile(line: str, body: str, first: int) -> None:
    """Writes the cell into a file: `%%writefile [-a] path`."""
    import shlex

    parts = shlex.split(expand(line))
    path = os.path.expanduser(parts[-1])
    appends = "-a" in parts[:-1] or "--append" in parts[:-1]
    verb = "Appending to" if appends else "Overwriting" if os.path.exists(path) else "Writing"
    with open(path, "a" if appends else "w", encoding="utf-8") as file:
        file.write(body if not body or body.endswith("\n") else body + "\n")
    sys.stdout.write("%s %s\n" % (verb, path))


def _time_cell(line: str, body: str, first: int) -> "Any":
    return _timed("\n" * first + body, "<cell %d>" % context.count)


def _timeit_cell(line: str, body: str, first: int) -> None:
    timeit(body, setup=line or "pass")


def capture(line: str, body: str, first: int) -> None:
    """Keeps what the cell prints: `%%capture name`, then `name.stdout`, `name.stderr`."""
    import contextlib
    import io

    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            filename = "<cell %d>" % context.count
            tree = context.parse("\n" * first + body, filename)
            context.run_steps(_compiled(tree, None, filename), body)
    finally:
        names = [part for part in line.split() if not part.startswith("-")]
        if names:
            context.namespace[names[0]] = Captured(out.getvalue(), err.getvalue())


class Captured:
    def __init__(self, stdout: str, stderr: str) -> None:
        self.stdout, self.stderr = stdout, stderr

    def __str__(self) -> str:
        return self.stdout

    def show(self) -> None:
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)

    __call__ = show


def _shown_as(mime: str) -> "Any":
    def show(line: str, body: str, first: int) -> None:
        from . import display

        display.publish({mime: body})

    return show


CELL_MAGICS: "dict[str, Any]" = {
    "bash": _script("bash"),
    "capture": capture,
    "file": writefile,
    "html": _shown_as("text/html"),
    "javascript": _shown_as("application/javascript"),
    "latex": _shown_as("text/latex"),
    "markdown": _shown_as("text/markdown"),
    "python": _script(sys.executable),
    "python3": _script(sys.executable),
    "sh": _script("sh"),
    "svg": _shown_as("image/svg+xml"),
    "time": _time_cell,
    "timeit": _timeit_cell,
    "writefile": writefile,
}
