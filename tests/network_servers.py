"""Servers that programs in sandboxes talk to: a web server, package indexes, repositories, a database.

They run in a thread of the test, on sockets of a NetworkWorld.
"""

import asyncio
import base64
import contextlib
import hashlib
import io
import json
import os
import socket
import ssl
import subprocess
import tarfile
import threading
import zipfile
from pathlib import Path
from typing import Any, Final

import asyncssh
from aiohttp import WSMsgType, web
from certificates import Certificates

_BACKEND: Final = "/usr/lib/git-core/git-http-backend"


class Servers:
    """`seen` lists the requests to the web server: name, method, path, headers."""

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        self._folder, self._certificates = folder, certificates
        self.seen: list[tuple[str, str, str, dict[str, str]]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None
        self._closing: list[Any] = []

    def __enter__(self) -> "Servers":
        make_repository(self._folder / "repository.git")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        for closing in self._closing:
            closing.close()
        if self._runner is not None:
            await self._runner.cleanup()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    # -- the web

    def serve_web(self, listener: socket.socket, *, tls: bool) -> None:
        self._do(self._serve_web(listener, tls))

    async def _serve_web(self, listener: socket.socket, tls: bool) -> None:
        if self._runner is None:
            app = web.Application()
            app.router.add_get("/ws", self._echo)
            app.router.add_get("/{prefix:(?:team/)?}simple/{name}/", self._python_index)
            app.router.add_get("/files/{file}", self._wheel)
            app.router.add_get("/npm/tiny-package", self._node_package)
            app.router.add_get("/npm/tiny-package.tgz", self._node_archive)
            app.router.add_route("*", "/git/{rest:.*}", self._git)
            app.router.add_route("*", "/team/project.git/{within:.*}", self._git)
            app.router.add_get("/size/{size}", self._bytes)
            app.router.add_post("/sink", self._sink)
            app.router.add_get("/{rest:.*}", self._hello)
            self._runner = web.AppRunner(app, access_log=None)
            await self._runner.setup()
        context = None
        if tls:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self._certificates.cert, self._certificates.key)
        await web.SockSite(self._runner, listener, ssl_context=context).start()

    def _note(self, request: web.Request) -> None:
        self.seen.append((request.host, request.method, request.path_qs, dict(request.headers)))

    async def _hello(self, request: web.Request) -> web.Response:
        self._note(request)
        return web.Response(text=f"hello from {request.host}\n")

    async def _bytes(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        left = answer.content_length = int(request.match_info["size"])
        await answer.prepare(request)
        piece = bytes(1 << 20)
        while left:
            await answer.write(piece[:left])
            left -= min(left, len(piece))
        return answer

    async def _sink(self, request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    async def _echo(self, request: web.Request) -> web.WebSocketResponse:
        self._note(request)
        answer = web.WebSocketResponse()
        await answer.prepare(request)
        async for message in answer:
            if message.type is WSMsgType.TEXT:
                await answer.send_str(message.data)
        return answer

    # -- packages

    async def _python_index(self, request: web.Request) -> web.Response:
        self._note(request)
        name = request.match_info["name"].replace("-", "_")
        file, digest = f"{name}-1.0-py3-none-any.whl", hashlib.sha256(make_wheel(name)).hexdigest()
        page = f'<!doctype html><a href="/files/{file}#sha256={digest}">{file}</a>'
        return web.Response(text=page, content_type="text/html")

    async def _wheel(self, request: web.Request) -> web.Response:
        return web.Response(body=make_wheel(request.match_info["file"].partition("-")[0]))

    async def _node_package(self, request: web.Request) -> web.Response:
        self._note(request)
        digest = base64.b64encode(hashlib.sha512(make_node_archive()).digest()).decode()
        archive = f"{request.scheme}://{request.host}/npm/tiny-package.tgz"
        version = {
            "name": "tiny-package",
            "version": "1.0.0",
            "dist": {"tarball": archive, "integrity": f"sha512-{digest}"},
        }
        values = {"name": "tiny-package", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        return web.json_response(values)

    async def _node_archive(self, request: web.Request) -> web.Response:
        return web.Response(body=make_node_archive())

    # -- Git

    async def _git(self, request: web.Request) -> web.Response:
        self._note(request)
        environ = {
            "GIT_PROJECT_ROOT": str(self._folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": f"/{request.match_info.get('rest') or 'repository.git/' + request.match_info['within']}",
            "REQUEST_METHOD": request.method,
            "QUERY_STRING": request.query_string,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": "",
            "HTTP_GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            "PATH": os.environ["PATH"],
            **_OWN_REPOSITORIES,
        }
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = await asyncio.create_subprocess_exec(_BACKEND, env=environ, **pipes)
        out, _ = await process.communicate(await request.read())
        head, _, body = out.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        status = int(headers.pop("Status", "200").split()[0])
        return web.Response(body=body, status=status, headers=headers)

    def serve_ssh(self, listener: socket.socket) -> None:
        """Serves the repository over SSH; anybody may read it."""
        self._do(self._serve_ssh(listener))

    async def _serve_ssh(self, listener: socket.socket) -> None:
        server = await asyncssh.listen(
            sock=listener,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            server_factory=_Anybody,
            process_factory=self._upload_pack,
            encoding=None,
        )
        self._closing.append(server)

    async def _upload_pack(self, process: Any) -> None:
        git = await asyncio.create_subprocess_exec(
            "git",
            "upload-pack",
            str(self._folder / "repository.git"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], **_OWN_REPOSITORIES},
        )
        assert git.stdin is not None
        assert git.stdout is not None
        reading = asyncio.ensure_future(_copy(process.stdin, git.stdin))
        await _copy(git.stdout, process.stdout)
        reading.cancel()
        process.exit(await git.wait())

    # -- PostgreSQL

    def serve_postgres(self, listener: socket.socket) -> None:
        """Speaks as much of the protocol as psql needs for `select 42`; the answer is 42, whatever is asked."""
        self._closing.append(self._do(asyncio.start_server(_speak_postgres, sock=listener)))


async def _copy(source: Any, target: Any) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()


class _Anybody(asyncssh.SSHServer):
    def begin_auth(self, username: str) -> bool:
        return False


# Git refuses repositories of other users unless it is told otherwise.
_OWN_REPOSITORIES: Final = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}


def _message(kind: bytes, content: bytes = b"") -> bytes:
    return kind + (4 + len(content)).to_bytes(4, "big") + content


async def _speak_postgres(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            size = int.from_bytes(await reader.readexactly(4), "big")
            start = await reader.readexactly(size - 4)
            if start[:4] not in (b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30"):  # requests for TLS and for GSSAPI
                break
            writer.write(b"N")
        ready = _message(b"Z", b"I")
        writer.write(_message(b"R", bytes(4)) + _message(b"S", b"server_version\x0015.0\x00") + ready)
        while (kind := await reader.readexactly(1)) != b"X":
            size = int.from_bytes(await reader.readexactly(4), "big")
            await reader.readexactly(size - 4)
            if kind == b"Q":
                column = b"n\x00" + bytes(6) + (23).to_bytes(4, "big") + (4).to_bytes(2, "big") + b"\xff" * 4 + bytes(2)
                row = (1).to_bytes(2, "big") + (2).to_bytes(4, "big") + b"42"
                writer.write(_message(b"T", (1).to_bytes(2, "big") + column) + _message(b"D", row))
                writer.write(_message(b"C", b"SELECT 1\x00") + ready)
    writer.close()


def make_repository(path: Path) -> None:
    """Makes a repository with one commit of one file, `hello.txt`."""
    work = path.with_suffix(".work")
    author = {"GIT_AUTHOR_NAME": "test", "GIT_AUTHOR_EMAIL": "test@example.com"}
    committer = {"GIT_COMMITTER_NAME": "test", "GIT_COMMITTER_EMAIL": "test@example.com"}
    environ = {**os.environ, **author, **committer, **_OWN_REPOSITORIES}

    def git(*arguments: str | Path) -> None:
        subprocess.run(["git", *arguments], check=True, capture_output=True, env=environ)

    git("init", "-q", "-b", "main", work)
    (work / "hello.txt").write_text("hello from the repository\n")
    git("-C", work, "add", ".")
    git("-C", work, "commit", "-q", "-m", "Add a file")
    git("clone", "-q", "--bare", work, path)


def make_wheel(package: str) -> bytes:
    """Makes the wheel of a package of this name."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        info = f"{package}-1.0.dist-info"
        for name, text in (
            (f"{package}.py", "answer = 42\n"),
            (f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"),
            (f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            (f"{info}/RECORD", ""),
        ):
            archive.writestr(zipfile.ZipInfo(name), text)
    return made.getvalue()


def make_node_archive() -> bytes:
    made = io.BytesIO()
    package = json.dumps({"name": "tiny-package", "version": "1.0.0", "main": "index.js"})
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=0) as archive:
        for name, text in (("package.json", package), ("index.js", "module.exports = 42\n")):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    data = bytearray(made.getvalue())
    data[4:8] = bytes(4)  # without the time, so that the bytes are always the same
    return bytes(data)
