"""A small shell that has just what the contract tests use. It runs no program of the host.

It understands words with quotes and $NAME; `;` `&` `&&` `||`; `> file`, `>> file`, `>&2`, `< file`; and the commands in
`BUILTINS`. A background command (`&`) is a task of its own, which is counted and ended with its process.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from warren.model.errors import FileNotFound, IsDirectory, WarrenError
from warren.model.operations import FileKind
from warren.testing.fake_files import FakeFiles, normalize_path

_TOKEN = re.compile(
    r"""\s*(?:(?P<op>&&|\|\||>&2|>>|[;&><\n])|(?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s;&|<>'"\\])+))""", re.S
)
_PIECE = re.compile(r"""'(?P<raw>[^']*)'|"(?P<soft>(?:\\.|[^"\\])*)"|\\(?P<esc>.)|(?P<bare>[^'"\\]+)""", re.S)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+|[$?]))")
_ESCAPES = {"n": b"\n", "t": b"\t", "\\": b"\\", "0": b"\0"}
ENDLESS = b"y\n" * 32768


class Exit(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


class Signalled(Exception):
    def __init__(self, number: int) -> None:
        self.number = number


class FakeTerminal(Protocol):
    """What a fake process offers its shell: output, input and signals."""

    pid: int
    ignored: set[int]

    async def emit(self, stream: int, data: bytes) -> None: ...
    async def take_input(self) -> bytes: ...
    def spawn(self, work: Awaitable[object]) -> None: ...
    def signal_pid(self, pid: int, number: int) -> bool: ...


@dataclass
class FakeShell:
    files: FakeFiles
    process: FakeTerminal
    uid: int
    user: str
    cwd: str
    env: dict[str, str]
    exported: set[str] = field(default_factory=set)
    status: int = 0
    out: Callable[[bytes], Awaitable[None]] | None = None
    source: str = ""

    async def run(self, text: str) -> int:
        """Runs a script to its end and returns its exit status."""
        try:
            for connector, words, background in _commands(text):
                if (connector == "&&" and self.status) or (connector == "||" and not self.status):
                    continue
                if background:
                    self.process.spawn(replace(self, env=dict(self.env)).run_one(words))
                    self.status = 0
                else:
                    self.status = await self.run_one(words)
        except Exit as exc:
            self.status = exc.code
        return self.status

    async def run_one(self, words: list[str]) -> int:
        plain: list[str] = []
        self.out, self.source = None, ""
        rest = iter(words)
        for word in rest:
            if word in (">", ">>"):
                self.out = self._to_file(self._path(self.expand(next(rest))), append=word == ">>")
            elif word == "<":
                self.source = self._path(self.expand(next(rest)))
            elif word == ">&2":
                self.out = self.complain_raw
            else:
                plain.append(self.expand(word))
        return await self.call(plain) if plain else 0

    async def call(self, argv: list[str]) -> int:
        name, *args = argv
        if re.fullmatch(r"\w+=.*", name, re.S) and not args:
            key, _, value = name.partition("=")
            self.env[key] = value
            return 0
        found = BUILTINS.get(name.removeprefix("/usr/bin/").removeprefix("/bin/"))
        try:
            if found is not None:
                return await found(self, args)
            return await self._not_a_program(name)
        except WarrenError as exc:
            await self.complain(f"{name}: {exc.message}")
            return 1

    async def _not_a_program(self, name: str) -> int:
        try:
            node = self.files.find(self._path(name), self.uid) if "/" in name else None
        except FileNotFound:
            node = None
        if node is None:
            await self.complain(f"{name}: command not found")
            return 127
        if node.kind is FileKind.DIRECTORY or not node.allows(self.uid, 1):
            await self.complain(f"{name}: cannot be executed")
            return 126
        return await replace(self).run(node.data.decode(errors="replace"))

    def expand(self, word: str) -> str:
        return "".join(self._piece(match) for match in _PIECE.finditer(word))

    def _piece(self, match: re.Match[str]) -> str:
        if match["raw"] is not None or match["esc"] is not None:
            return match["raw"] or match["esc"] or ""
        text = match["soft"] if match["soft"] is not None else match["bare"]
        text = _VARIABLE.sub(lambda found: self._value(found[1] or found[2]), text)
        return re.sub(r'\\(["$\\])', r"\1", text) if match["soft"] is not None else text

    def _value(self, name: str) -> str:
        return {"$": str(self.process.pid), "?": str(self.status)}.get(name) or self.env.get(name, "")

    def _path(self, name: str) -> str:
        return normalize_path(name if name.startswith("/") else f"{self.cwd}/{name}")

    def _to_file(self, path: str, *, append: bool) -> Callable[[bytes], Awaitable[None]]:
        if path != "/dev/null" and not append:
            self.files.write(path, b"", None, self.uid)

        async def write(data: bytes) -> None:
            if path != "/dev/null":
                try:
                    old = self.files.read(path, self.uid)
                except FileNotFound:
                    old = b""
                self.files.write(path, old + data, None, self.uid)

        return write

    async def say(self, data: bytes) -> None:
        await (self.out(data) if self.out is not None else self.process.emit(1, data))

    async def complain_raw(self, data: bytes) -> None:
        await self.process.emit(2, data)

    async def complain(self, text: str) -> None:
        await self.complain_raw(f"{text}\n".encode(errors="surrogateescape"))

    async def input(self) -> bytes:
        return await self.process.take_input()


def _commands(text: str) -> list[tuple[str, list[str], bool]]:
    """Returns, for each command, the connector before it, its words and redirections, and whether it runs in the
    background."""
    found: list[tuple[str, list[str], bool]] = []
    connector, words, at = "", list[str](), 0
    while (match := _TOKEN.match(text, at)) is not None:
        at = match.end()
        op = match["op"]
        if op is None or op in (">", ">>", "<", ">&2"):
            words.append(op or match["word"])
            continue
        if words:
            found.append((connector, words, op == "&"))
        connector, words = op if op in ("&&", "||") else "", []
    if words:
        found.append((connector, words, False))
    if text[at:].strip():
        raise Exit(2)
    return found


async def _echo(shell: FakeShell, args: list[str]) -> int:
    newline = not (args and args[0] == "-n")
    await shell.say(
        (" ".join(args if newline else args[1:]) + ("\n" if newline else "")).encode(errors="surrogateescape")
    )
    return 0


async def _printf(shell: FakeShell, args: list[str]) -> int:
    text = args[0].replace("%s", args[1] if len(args) > 1 else "")
    parts = re.split(r"\\(x[0-9a-fA-F]{2}|[nt\\0])", text)
    data = b"".join(
        part.encode(errors="surrogateescape") if not at % 2 else _ESCAPES.get(part) or bytes([int(part[1:], 16)])
        for at, part in enumerate(parts)
    )
    await shell.say(data)
    return 0


async def _cat(shell: FakeShell, args: list[str]) -> int:
    for path in args or ([shell.source] if shell.source else []):
        await shell.say(shell.files.read(shell._path(path), shell.uid))
    if not args and not shell.source:
        while data := await shell.input():
            await shell.say(data)
    return 0


async def _wc(shell: FakeShell, args: list[str]) -> int:
    count = 0
    while data := await shell.input():
        count += len(data)
    await shell.say(f"{count}\n".encode())
    return 0


async def _head(shell: FakeShell, args: list[str]) -> int:
    """`head -c N /dev/zero`"""
    left = int(args[1])
    while left:
        await shell.say(bytes(min(left, 65536)))
        left -= min(left, 65536)
    return 0


async def _yes(shell: FakeShell, args: list[str]) -> int:
    while True:
        await shell.say(ENDLESS)
        await asyncio.sleep(0)


async def _sleep(shell: FakeShell, args: list[str]) -> int:
    await asyncio.sleep(float(args[0]))
    return 0


async def _cd(shell: FakeShell, args: list[str]) -> int:
    path = shell._path(args[0] if args else shell.env.get("HOME", "/"))
    if shell.files.find(path, shell.uid).kind is not FileKind.DIRECTORY:
        raise FileNotFound(f"{path} is not a directory")
    shell.cwd = path.rstrip("/") or "/"
    return 0


async def _pwd(shell: FakeShell, args: list[str]) -> int:
    await shell.say(f"{shell.cwd}\n".encode(errors="surrogateescape"))
    return 0


async def _export(shell: FakeShell, args: list[str]) -> int:
    for arg in args:
        name, equals, value = arg.partition("=")
        shell.exported.add(name)
        if equals:
            shell.env[name] = value
    return 0


async def _printenv(shell: FakeShell, args: list[str]) -> int:
    if args[0] not in shell.env:
        return 1
    await shell.say(f"{shell.env[args[0]]}\n".encode(errors="surrogateescape"))
    return 0


async def _exit(shell: FakeShell, args: list[str]) -> int:
    raise Exit(int(args[0]) & 255 if args else shell.status)


async def _kill(shell: FakeShell, args: list[str]) -> int:
    number = int(args[0][1:]) if args[0].startswith("-") else 15
    if int(args[-1]) == shell.process.pid:
        if number not in shell.process.ignored:
            raise Signalled(number)
        return 0
    return 0 if shell.process.signal_pid(int(args[-1]), number) else 1


async def _trap(shell: FakeShell, args: list[str]) -> int:
    """`trap '' TERM`"""
    shell.process.ignored.add(15)
    return 0


async def _whoami(shell: FakeShell, args: list[str]) -> int:
    await shell.say(f"{shell.user}\n".encode())
    return 0


async def _id(shell: FakeShell, args: list[str]) -> int:
    await shell.say(f"{shell.uid}\n".encode())
    return 0


async def _mkdir(shell: FakeShell, args: list[str]) -> int:
    shell.files.mkdir(shell._path(args[-1]), 0o755, shell.uid)
    return 0


async def _rm(shell: FakeShell, args: list[str]) -> int:
    shell.files.remove(shell._path(args[-1]), args[0].startswith("-r"), shell.uid)
    return 0


async def _ln(shell: FakeShell, args: list[str]) -> int:
    """`ln -s TARGET NAME`"""
    shell.files.link(shell._path(args[2]), args[1], shell.uid)
    return 0


async def _chmod(shell: FakeShell, args: list[str]) -> int:
    shell.files.find(shell._path(args[1]), shell.uid).mode = int(args[0], 8)
    return 0


async def _test(shell: FakeShell, args: list[str]) -> int:
    """`test -e PATH`"""
    try:
        shell.files.find(shell._path(args[1]), shell.uid)
    except (FileNotFound, IsDirectory):
        return 1
    return 0


async def _true(shell: FakeShell, args: list[str]) -> int:
    return 0


async def _false(shell: FakeShell, args: list[str]) -> int:
    return 1


async def _sh(shell: FakeShell, args: list[str]) -> int:
    """`sh -c TEXT`, `bash -l -c TEXT`"""
    return await replace(shell, env=dict(shell.env)).run(args[-1])


BUILTINS: dict[str, Callable[[FakeShell, list[str]], Awaitable[int]]] = {
    "echo": _echo, "printf": _printf, "cat": _cat, "wc": _wc, "head": _head, "yes": _yes, "sleep": _sleep, "cd": _cd,
    "pwd": _pwd, "export": _export, "printenv": _printenv, "exit": _exit, "kill": _kill, "trap": _trap, "id": _id,
    "whoami": _whoami, "mkdir": _mkdir, "rm": _rm, "ln": _ln, "chmod": _chmod, "test": _test, "true": _true,
    "false": _false, "sh": _sh, "bash": _sh,
}  # fmt: skip
